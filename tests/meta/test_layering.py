"""Who may import whom, by scanning the source; what stays unimported until it is needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest
from source_files import PACKAGE, ROOT, SOURCES, below, by_folder, problems, tree_of

from specc.algorithms import names
from specc.config.presets import ENGINES

LAYERS = (
    "version",
    "support",
    "ir",
    "config",
    "kernels",
    "algorithms",
    "pass_manager",
    "passes",
    "codegen",
    "build",
    "explain",
    "engine",
    "measure",
    "cli",
)
"""Lowest first: a file may import its own layer and those before it."""

MAY_NAME_RUNTIME = re.compile(
    r"ir/interpret\.py|build/wheel/wheel\.py|cli/(doctor|inspect)\.py|(engine|measure)/.*\.py"
)
"""Only op semantics, the wheel writer, `inspect` and `doctor`, the engine and measuring touch the runtime, an island.

Besides, any file may import `specc.runtime.plan`: what the compiler writes and the runtime reads.
"""

SERVED = "specc.adapters.{}.served"
"""What the compiler reads of an adapter: facts and functions over them, which import nothing but `served_...` beside.

Only what is of that engine may, so that a refusal is the same before a server starts and when it does.
"""

ISLANDS = ("runtime", "adapters")
"""Folders that are copied into wheels."""

BROUGHT = {"sglang": ("triton",)}
"""What an engine never runs without, beside torch, and its adapter may use."""


def module(path: Path) -> str:
    """``specc/ir/core.py`` -> ``specc.ir.core``; the face of a package is the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path): path for path in SOURCES}


def imports(path: Path) -> Iterator[str]:
    """Absolute names of modules a file imports, in functions too; relative imports resolved."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(tree_of(path)):
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
    """``specc.ir.core`` -> ``ir``."""
    return name.split(".")[1] if name.startswith("specc.") else ""


def test_every_file_has_a_layer() -> None:
    names = {below(path).partition("/")[0].removesuffix(".py") for path in SOURCES}
    assert names - {"__init__", "__main__", *ISLANDS} == set(LAYERS)


def imports_upwards(path: Path) -> Iterator[str]:
    """What a file imports of layers above its own."""
    own = below(path).partition("/")[0].removesuffix(".py")
    if own in (*ISLANDS, "__init__", "__main__"):
        return
    for name in imports(path):
        imported = layer(name)
        if (
            not imported
            or imported in ISLANDS
            or (not (PACKAGE / imported).exists() and not (PACKAGE / f"{imported}.py").exists())
        ):
            continue
        if LAYERS.index(imported) > LAYERS.index(own):
            yield name


@by_folder(SOURCES)
def test_imports_go_down(paths: list[Path]) -> None:
    assert problems(paths, imports_upwards) == {}


def test_the_page_says_what_layers_import() -> None:
    """A row that says "up to" a layer names the highest one that the folder's files import."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    documented = dict(re.findall(r"^\| `specc/(\w+)` \|.*\| up to (\w+)\b[^|]*\|$", page, re.M))
    actual = {
        own: max(
            (layer(name) for path in (PACKAGE / own).rglob("*.py") for name in imports(path) if layer(name) in below),
            key=LAYERS.index,
        )
        for own in documented
        if (below := LAYERS[: LAYERS.index(own)])
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


@pytest.mark.parametrize("path", [path for path in SOURCES if below(path).startswith("adapters/")], ids=below)
def test_an_adapter_is_an_island(path: Path) -> None:
    """It is copied into wheels of its engine: nothing of specc but the program around it, and of others the engine."""
    engine = below(path).split("/")[1]
    for name in imports(path):
        if name.startswith("specc"):
            assert name == "specc.adapters" or name.startswith("specc.adapters."), name
            assert {word for word in ENGINES if name.startswith(f"specc.adapters.{word}")} <= {engine}, name
        else:
            assert name.split(".")[0] in {*sys.stdlib_module_names, "torch", engine, *BROUGHT.get(engine, ())}, name
    assert not re.search(r"(import|from) specc\b", path.read_text()), "an absolute import would not survive the copy"


def test_every_engine_has_a_preset_and_an_adapter() -> None:
    assert {path.stem for path in (PACKAGE / "config/presets").glob("*.py")} - {"__init__", "preset"} >= set(ENGINES)
    assert {path.name for path in (PACKAGE / "adapters").iterdir() if path.is_dir()} - {"__pycache__"} == set(ENGINES)


def test_nobody_imports_an_adapter() -> None:
    """But what is of an engine the engine's table of what is served."""
    outside = [path for path in SOURCES if not below(path).startswith("adapters/")]
    named = {(below(path), name) for path in outside for name in imports(path) if layer(name) == "adapters"}
    for engine in ENGINES:
        of_engine = re.compile(rf"config(/presets)?/{engine}\w*(\.py|/.*)")
        table = f"{SERVED.format(engine)}."
        allowed = {(path, name) for path, name in named if of_engine.fullmatch(path) and f"{name}.".startswith(table)}
        assert allowed
        named -= allowed
    assert named == set()


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_compiler_reads_of_an_adapter_imports_nothing(engine: str) -> None:
    own = SERVED.format(engine)
    read = [path for name, path in MODULES.items() if name == own or name.startswith(f"{own}_")]
    imported = {name for path in read for name in imports(path) if not name.startswith(f"{own}_")}
    assert {name.split(".")[0] for name in imported} <= {*sys.stdlib_module_names}


def test_who_names_the_runtime() -> None:
    inner = re.compile(r"specc\.runtime\.(?!plan\.)")
    named = {below(path) for path in SOURCES if any(inner.match(name) for name in imports(path))}
    outside = {path for path in named if not path.startswith("runtime/")}
    assert {path for path in outside if not MAY_NAME_RUNTIME.fullmatch(path)} == set()


def strings(tree: ast.Module, *, without: frozenset[int] = frozenset()) -> list[str]:
    """Strings in code, without docstrings and those nodes."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs | without]
    return [node.value for node in constants if isinstance(node.value, str)]


def operand_names(tree: ast.Module) -> frozenset[int]:
    """The nodes that name an op's operand or result: of ``op["x"]``, ``op.get("x")`` and ``op.out("x")``."""
    operands: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(), slice=ast.Constant() as name):
                operands.add(id(name))
            case ast.Call(func=ast.Attribute(value=ast.Name(), attr="get" | "out"), args=[ast.Constant() as name]):
                operands.add(id(name))
            case _:
                pass
    return frozenset(operands)


def code_words(path: Path) -> list[str]:
    """Names and strings in a file's code, without docstrings and comments; of a template every line."""
    if path.suffix != ".py":
        return path.read_text().splitlines()
    tree = tree_of(path)
    words = strings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute | ast.arg | ast.alias | ast.FunctionDef | ast.ClassDef):
            words += [str(getattr(node, name)) for name in ("id", "attr", "arg", "name") if hasattr(node, name)]
        elif isinstance(node, ast.ImportFrom) and node.module:
            words.append(node.module)
    return words


ALGORITHMS = {name: re.compile(name.replace("_", "_?"), re.IGNORECASE) for name in names()}
TEMPLATES = sorted(path for path in (ROOT / "templates").rglob("*") if path.suffix in (".py", ".jinja"))

KEYS_OF_MODELS = {
    "config/models/drafting.py",
    "config/models/known.py",
    "config/models/pair.py",
    "config/rules/draft_kind.py",
    "engine/models/generation.py",
}
"""Keys of config.json and generation_config.json are spelled there, such as `eagle_config`."""

ENGINE = re.compile(r"engine/(models/(heads/\w+_heads?|drafts|loading)|serving/draft_callbacks)\.py")
"""The reference engine runs kinds of draft models, which have the names of the papers that they come from."""

DIALECT = re.compile(
    r"ir/ops/(__init__|ngram)\.py|runtime/semantics/ngram\.py|kernels/(__init__|ngram_\w+)\.py"
    r"|kernels/ngram_\w+\.py\.jinja"
)
"""The dialect `ngram` of look-ups in a text, its semantics and its kernels: any algorithm may use them."""


def named(path: Path, base: Path) -> set[str]:
    """Algorithms that a file names; the dialect of look-ups is none."""
    words = code_words(path)
    algorithms = {name for name, pattern in ALGORITHMS.items() if any(pattern.search(word) for word in words)}
    return algorithms - {"NGRAM"} if DIALECT.fullmatch(path.relative_to(base).as_posix()) else algorithms


PRESET = re.compile(rf"(config(/presets)?|adapters|measure/against)/({'|'.join(ENGINES)})\w*(\.py|/.*)")
"""What is of one engine: it serves some algorithms, by name."""


@by_folder(path for path in SOURCES if not below(path).startswith("algorithms/"))
def test_algorithms_are_named_in_few_places(paths: list[Path]) -> None:
    """Their own files, keys of models, and the reference engine's drafts. No pass, kernel, runtime or command does."""
    others = (path for path in paths if below(path) not in KEYS_OF_MODELS)
    others = (path for path in others if not (ENGINE.fullmatch(below(path)) or PRESET.fullmatch(below(path))))
    assert problems(others, lambda path: named(path, PACKAGE)) == {}


NAMES_ENGINES = re.compile(
    rf"{PRESET.pattern}|config/presets/__init__\.py|cli/(main|examples|{'|'.join(ENGINES)})\.py"
    r"|measure/against/.*"
)
"""The table of presets, the commands of one engine, lines that people type, kernels of an engine's in benchmarks."""


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
    own = [named(path, PACKAGE) for path in SOURCES if below(path).startswith("algorithms/")]
    assert set().union(*own) == set(ALGORITHMS)


FORWARD = re.compile(r"model\.\w+")
FIELDS = {"bonus", "topk_index", "topk_p", "hidden"}
STRUCTURE = ("passes/", "kernels/", "codegen/", "explain/", "report/", "ir/")


def names_of_values(path: Path) -> set[str]:
    """Opcodes of forwards and names of fields in a file's code, but for those of operands and results."""
    words = set(strings(tree_of(path), without=operand_names(tree_of(path))))
    forwards = {word for word in words if FORWARD.fullmatch(word) and below(path) != "ir/ops/model.py"}
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
        "from pathlib import Path\nfrom specc.algorithms import names, needs\nfrom specc.config import load_config\n"
        "from specc.build.build import build_program\n"
    )
    assert not {"torch", "triton", "transformers"} & loaded_by(
        f"{code}build_program(load_config(Path({str(example)!r}), names(), needs))"
    )
