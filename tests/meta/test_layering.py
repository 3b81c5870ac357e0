"""Who may import whom, by scanning the source; what stays unimported until it is needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import networkx as nx
import pytest
from source_files import PACKAGE, ROOT, SOURCES, below, by_folder, nodes_of, problems, tree_of

from specc.compiler.algorithms import names
from specc.compiler.config.presets import ENGINES, GROUP, PRESETS

LAYERS = (
    "version",
    "compiler/support",
    "compiler/ir",
    "compiler/config",
    "compiler/kernels",
    "compiler/algorithms",
    "compiler/pass_manager",
    "compiler/passes",
    "compiler/codegen",
    "compiler/driver",
    "compiler/explain",
    "cli",
    "engines",
    "lab/engine",
    "lab/measure",
    "lab/commands",
)
"""Lowest first: a file may import its own layer and those before it, but engines and the lab not one another."""

APART = ("engines", "lab")
"""Houses that nobody imports: whoever needs one asks its entry points."""

MAY_NAME_RUNTIME = re.compile(
    r"compiler/(ir/interpret|driver/wheel/wheel)\.py|cli/(doctor|inspect|times_file)\.py|lab/.*\.py"
)
"""Only op semantics, the wheel writer, three commands and the lab touch the runtime, an island.

Besides, any file may import `specc.runtime.plan`: what the compiler writes and the runtime reads.
"""

SERVED = "specc.engines.{}.served"
"""What commands read of an adapter: facts and functions over them, which need the standard library alone.

A refusal is the same before a server starts and when it does.
"""

ADAPTER = re.compile(rf"engines/(?:_[a-z]\w*\.py|({'|'.join(ENGINES)})/(?!check/|commands/).*)")
"""What is copied into wheels of an engine: its adapter, and what adapters share."""

CONTRACT = "specc.runtime.entry.callbacks"
"""What adapters name for type checkers alone: where it is in a wheel is not where it is here."""
CHECKED = re.compile(rf"^if TYPE_CHECKING:\n    from {re.escape(CONTRACT)} import .*\n", re.MULTILINE)

BROUGHT = {"sglang": ("triton",)}
"""What an engine never runs without, beside torch, and its adapter may use."""


def module(path: Path) -> str:
    """``specc/compiler/ir/core.py`` -> ``specc.compiler.ir.core``; the face of a package is the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path): path for path in SOURCES}


@cache
def imports(path: Path) -> list[str]:
    """Absolute names of modules a file imports, in functions too; relative imports resolved."""
    return [*_imports(path)]


def _imports(path: Path) -> Iterator[str]:
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in nodes_of(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (above, node.module) if part)
            named = [f"{base}.{alias.name}" for alias in node.names]
            yield from named
            if not MODULES.keys() >= set(named):
                yield base


def layer(name: str) -> str:
    """``specc.compiler.ir.core`` -> ``compiler/ir``, and of a house without layers the house; empty for none."""
    parts = name.split(".")[1:] if name.startswith("specc.") else []
    return next((place for place in ("/".join(parts[:2]), *parts[:1]) if place in LAYERS), "")


def test_there_are_four_houses_and_one_command_line() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert folders == {"cli", "compiler", "engines", "lab", "runtime"}


def test_every_file_has_a_layer() -> None:
    faces = {"specc", "specc.__main__", "specc.compiler", "specc.lab", "specc.lab.commands"}
    names = {name for name in MODULES if not name.startswith("specc.runtime")} - faces
    assert [name for name in names if not layer(name)] == []
    assert {layer(name) for name in names} == set(LAYERS)


def imports_upwards(path: Path) -> Iterator[str]:
    """What a file imports of layers above its own, or of the other house of those that nobody imports."""
    if not (own := layer(module(path))):
        return
    for name in imports(path):
        if not (imported := layer(name)):
            continue
        house, other = own.partition("/")[0], imported.partition("/")[0]
        if LAYERS.index(imported) > LAYERS.index(own) or (other in APART and other != house):
            yield name


@by_folder(SOURCES)
def test_imports_go_down(paths: list[Path]) -> None:
    assert problems(paths, imports_upwards) == {}


def test_walls_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    path = PACKAGE / "lab" / "engine" / "wheel.py"
    for name, wrong in (("specc.engines.pasted", True), ("specc.lab.commands.run", True), ("specc.cli.words", False)):
        monkeypatch.setattr(sys.modules[__name__], "imports", lambda _, name=name: iter([name]))
        assert [*imports_upwards(path)] == [name] * wrong


def test_the_page_says_what_layers_import() -> None:
    """A row that says "up to" a layer names the highest one that the folder's files import."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    documented = dict(re.findall(r"^\| `specc/([\w/]+)` \|.*\| up to ([\w/]+)\b[^|]*\|$", page, re.M))
    actual = {
        own: max(
            (layer(name) for path in (PACKAGE / own).rglob("*.py") for name in imports(path) if layer(name) in lower),
            key=LAYERS.index,
        ).removeprefix("compiler/")
        for own in documented
        if (lower := LAYERS[: LAYERS.index(own)])
    }
    assert documented == actual


def room(path: Path) -> str:
    """A folder without folders is a room; in any other, every file is one."""
    folders = any(child.is_dir() and any(child.glob("*.py")) for child in path.parent.iterdir())
    return below(path) if folders else below(path.parent)


def test_no_import_goes_in_a_circle() -> None:
    """Between rooms, imports for type checkers and in functions included."""
    arrows = {(room(path), room(MODULES[name])) for path in SOURCES for name in imports(path) if name in MODULES}
    house = nx.DiGraph((importer, imported) for importer, imported in arrows if importer != imported)
    assert [sorted(circle) for circle in nx.strongly_connected_components(house) if len(circle) > 1] == []


def test_no_name_stands_three_times() -> None:
    """Ops apart: what they mean stands in a file of the same name."""
    counted = [path for path in SOURCES if path.name != "__init__.py" and path.parent.name != "semantics"]
    count = Counter(path.name for path in counted)
    assert {name for name, times in count.items() if times > 2} == set()


@pytest.mark.parametrize("path", [path for path in SOURCES if below(path).startswith("runtime/")], ids=below)
def test_the_runtime_is_an_island(path: Path) -> None:
    """It is copied into wheels: nothing of specc outside itself, and of others only torch and CUDA's bindings."""
    for name in imports(path):
        if name.startswith("specc"):
            assert name == "specc.runtime" or name.startswith("specc.runtime."), name
        else:
            assert name.split(".")[0] in {*sys.stdlib_module_names, "torch", "cuda"}, name
    assert "specc.runtime" not in path.read_text(), "an absolute import would not survive the copy"


@pytest.mark.parametrize("path", [path for path in SOURCES if ADAPTER.fullmatch(below(path))], ids=below)
def test_an_adapter_is_an_island(path: Path) -> None:
    """It is copied into wheels of its engine: nothing of specc but the program around it, and of others the engine."""
    match = ADAPTER.fullmatch(below(path))
    engine = (match and match[1]) or "none"
    text = CHECKED.sub("", path.read_text())
    for name in imports(path):
        if f"{name}.".startswith(f"{CONTRACT}."):
            assert CONTRACT not in text, "an import for type checkers alone"
        elif name.startswith("specc"):
            assert name == "specc.engines" or name.startswith("specc.engines."), name
            assert {word for word in ENGINES if name.startswith(f"specc.engines.{word}")} <= {engine}, name
            file = MODULES.get(name) or MODULES.get(name.rpartition(".")[0])
            assert file is None or name == "specc.engines" or ADAPTER.fullmatch(below(file)), name
        else:
            assert name.split(".")[0] in {*sys.stdlib_module_names, "torch", engine, *BROUGHT.get(engine, ())}, name
    assert not re.search(r"(import|from) specc\b", text), "an absolute import would not survive the copy"


def test_a_wheel_has_an_adapter_and_what_adapters_share() -> None:
    for engine in ENGINES:
        adapter = [match for path in SOURCES if (match := ADAPTER.fullmatch(below(path)))]
        own = {match[0].replace(f"engines/{engine}/", f"_{engine}/") for match in adapter if match[1] == engine}
        shared = {match[0].removeprefix("engines/") for match in adapter if match[1] is None}
        assert {*PRESETS[engine].adapter()} == own | shared


def test_every_engine_has_a_preset_and_an_adapter() -> None:
    folders = {path.name for path in (PACKAGE / "engines").iterdir() if (path / "check" / "preset.py").is_file()}
    assert folders == set(ENGINES) == {point.name for point in entry_points(group=GROUP)}
    assert all(folder.is_file() for name in ENGINES if (folder := PACKAGE / "engines" / name / "__init__.py"))


def test_who_reads_an_adapter() -> None:
    """Nobody but what checks servers of the same engine, and of it the table of what is served."""
    outside = [path for path in SOURCES if not ADAPTER.fullmatch(below(path))]
    files = {module(path) for path in SOURCES if (match := ADAPTER.fullmatch(below(path))) and match[1]}
    named = {(below(path), name) for path in outside for name in imports(path)}
    read = {(path, name) for path, name in named if name in files or name.rpartition(".")[0] in files}
    read -= {(path, name) for path, name in read if name.rpartition(".")[2] in ("check", "commands")}
    for engine in ENGINES:
        of_engine = re.compile(rf"engines/{engine}/(check|commands)/.*")
        table = f"{SERVED.format(engine)}."
        allowed = {(path, name) for path, name in read if of_engine.fullmatch(path) and f"{name}.".startswith(table)}
        assert allowed
        read -= allowed
    assert {
        (path, name) for path, name in read if name not in {f"specc.engines.{engine}" for engine in ENGINES}
    } == set()


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_compiler_reads_of_an_adapter_imports_nothing(engine: str) -> None:
    """But the standard library and each other, nor do their functions; some are found by listing a folder."""
    script = f"import sys; before = {{*sys.modules}}; import {SERVED.format(engine)}; print(*{{*sys.modules}} - before)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {*done.stdout.split()}
    assert {name.split(".")[0] for name in loaded} <= {*sys.stdlib_module_names, "specc"}
    read = [name for name in loaded if name.startswith(f"specc.engines.{engine}.")]
    imported = {name for of in read for name in imports(MODULES[of]) if not {name, name.rpartition(".")[0]} & loaded}
    assert {name.split(".")[0] for name in imported} <= {*sys.stdlib_module_names}


def test_who_names_the_runtime() -> None:
    inner = re.compile(r"specc\.runtime\.(?!plan\.)")
    named = {below(path) for path in SOURCES if any(inner.match(name) for name in imports(path))}
    outside = {path for path in named if not path.startswith("runtime/") and not ADAPTER.fullmatch(path)}
    assert {path for path in outside if not MAY_NAME_RUNTIME.fullmatch(path)} == set()


def strings(tree: ast.Module, *, without: frozenset[int] = frozenset()) -> list[str]:
    """Strings in code, without docstrings and those nodes."""
    docs = {id(node.value) for node in nodes_of(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in nodes_of(tree) if isinstance(node, ast.Constant) and id(node) not in docs | without]
    return [node.value for node in constants if isinstance(node.value, str)]


def operand_names(tree: ast.Module) -> frozenset[int]:
    """The nodes that name an op's operand or result: of ``op["x"]``, ``op.get("x")`` and ``op.out("x")``."""
    operands: set[int] = set()
    for node in nodes_of(tree):
        match node:
            case ast.Subscript(value=ast.Name(), slice=ast.Constant() as name):
                operands.add(id(name))
            case ast.Call(func=ast.Attribute(value=ast.Name(), attr="get" | "out"), args=[ast.Constant() as name]):
                operands.add(id(name))
            case _:
                pass
    return frozenset(operands)


@cache
def code_words(path: Path) -> list[str]:
    """Names and strings in a file's code, without docstrings and comments; of a template every line."""
    if path.suffix != ".py":
        return path.read_text().splitlines()
    tree = tree_of(path)
    words = strings(tree)
    for node in nodes_of(tree):
        if isinstance(node, ast.Name | ast.Attribute | ast.arg | ast.alias | ast.FunctionDef | ast.ClassDef):
            words += [str(getattr(node, name)) for name in ("id", "attr", "arg", "name") if hasattr(node, name)]
        elif isinstance(node, ast.ImportFrom) and node.module:
            words.append(node.module)
    return words


ALGORITHMS = {name: re.compile(name.replace("_", "_?"), re.IGNORECASE) for name in names()}
TEMPLATES = sorted(path for path in (ROOT / "templates").rglob("*") if path.suffix in (".py", ".jinja"))

KEYS_OF_MODELS = {
    "compiler/config/models/drafting.py",
    "compiler/config/models/known.py",
    "compiler/config/models/pair.py",
    "compiler/config/rules/draft_kind.py",
    "lab/engine/models/generation.py",
}
"""Keys of config.json and generation_config.json are spelled there, such as `eagle_config`."""

ENGINE = re.compile(r"lab/engine/(models/(heads/\w+_heads?|drafts|loading)|serving/draft_callbacks)\.py")
"""The reference engine runs kinds of draft models, which have the names of the papers that they come from."""

DIALECT = re.compile(
    r"compiler/ir/ops/(__init__|ngram)\.py|runtime/semantics/ngram\.py|compiler/kernels/(__init__|ngram_\w+)\.py"
    r"|kernels/ngram_\w+\.py\.jinja"
)
"""The dialect `ngram` of look-ups in a text, its semantics and its kernels: any algorithm may use them."""


def named(path: Path, base: Path) -> set[str]:
    """Algorithms that a file names; the dialect of look-ups is none."""
    words = code_words(path)
    algorithms = {name for name, pattern in ALGORITHMS.items() if any(pattern.search(word) for word in words)}
    return algorithms - {"NGRAM"} if DIALECT.fullmatch(path.relative_to(base).as_posix()) else algorithms


PRESET = re.compile(rf"(engines|lab/measure/against)/({'|'.join(ENGINES)})\w*(\.py|/.*)")
"""What is of one engine: it serves some algorithms, by name."""


@by_folder(path for path in SOURCES if not below(path).startswith("compiler/algorithms/"))
def test_algorithms_are_named_in_few_places(paths: list[Path]) -> None:
    """Their own files, keys of models, and the reference engine's drafts. No pass, kernel, runtime or command does."""
    others = (path for path in paths if below(path) not in KEYS_OF_MODELS)
    others = (path for path in others if not (ENGINE.fullmatch(below(path)) or PRESET.fullmatch(below(path))))
    assert problems(others, lambda path: named(path, PACKAGE)) == {}


NAMES_ENGINES = re.compile(rf"{PRESET.pattern}|lab/commands/(bench_serve)\.py|lab/measure/against/.*")
"""What is of one engine, lines that people type, kernels of an engine's in benchmarks."""


@by_folder(path for path in SOURCES if not NAMES_ENGINES.fullmatch(below(path)))
def test_engines_are_named_in_few_places(paths: list[Path]) -> None:
    """Whoever needs to know an engine asks its preset."""

    def words(path: Path) -> set[str]:
        return {word for word in code_words(path) for engine in ENGINES if engine in word.lower()}

    assert problems(paths, words) == {}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_names_an_algorithm(path: Path) -> None:
    assert named(path, ROOT / "templates") == set()


def test_every_exception_is_needed() -> None:
    """Who may name algorithms does; and the scan finds every one of them where it is defined."""
    assert all(named(PACKAGE / path, PACKAGE) for path in KEYS_OF_MODELS)
    assert all(named(path, PACKAGE) for path in SOURCES if ENGINE.fullmatch(below(path)))
    dialect = [path for path in SOURCES if DIALECT.fullmatch(below(path))]
    assert all(any("ngram" in word.lower() for word in code_words(path)) for path in dialect)
    own = [named(path, PACKAGE) for path in SOURCES if below(path).startswith("compiler/algorithms/")]
    assert set().union(*own) == set(ALGORITHMS)


FORWARD = re.compile(r"model\.\w+")
FIELDS = {"bonus", "topk_index", "topk_p", "hidden"}
STRUCTURE = tuple(f"compiler/{room}/" for room in ("passes", "kernels", "codegen", "explain", "ir"))


def names_of_values(path: Path) -> set[str]:
    """Opcodes of forwards and names of fields in a file's code, but for those of operands and results."""
    words = set(strings(tree_of(path), without=operand_names(tree_of(path))))
    forwards = {word for word in words if FORWARD.fullmatch(word) and below(path) != "compiler/ir/ops/model.py"}
    return forwards | words & FIELDS


@by_folder(path for path in SOURCES if below(path).startswith(STRUCTURE))
def test_structure_is_not_decided_by_names(paths: list[Path]) -> None:
    """No forward is told from another by its opcode, and no carried value by its field: plugins bring their own.

    Operands and results have names of their own, and some are those of fields.
    """
    assert problems(paths, names_of_values) == {}


def loaded_by(code: str) -> set[str]:
    """Heavy packages that are imported after running some code in a fresh interpreter."""
    report = "import sys; print(*(m for m in ('torch', 'triton', 'transformers', 'networkx') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()) if done.stdout.strip() else set()


def test_importing_specc_loads_nothing_heavy() -> None:
    assert loaded_by("import specc") == set()


@pytest.mark.parametrize("command", ["specc.cli.main", "specc.cli.opt"])
def test_help_loads_nothing_heavy(command: str) -> None:
    code = f"import sys, {command} as m\nsys.argv = ['x', '--help']\ntry:\n    m.app()\nexcept SystemExit:\n    pass"
    assert loaded_by(code) == set()


def test_compiling_needs_no_torch() -> None:
    """Passes, kernels and plan of a configuration without model directories."""
    example = ROOT / "examples" / "llama-8b-eagle.yaml"
    code = (
        "from pathlib import Path\nfrom specc.compiler.algorithms import names, needs\n"
        "from specc.compiler.config import load_config\n"
        "from specc.compiler.driver.build import build_program\n"
    )
    assert not {"torch", "triton", "transformers"} & loaded_by(
        f"{code}build_program(load_config(Path({str(example)!r}), names(), needs))"
    )
