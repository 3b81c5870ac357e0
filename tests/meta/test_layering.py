"""Who may import whom, by scanning the source; what stays unimported until it is needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "specc"

LAYERS = (
    "version",
    "support",
    "ir",
    "config",
    "kernels",
    "algorithms",
    "passes",
    "driver",
    "codegen",
    "build",
    "emit",
    "engine",
    "cli",
)
"""Lowest first: a file may import its own layer and those before it."""

MAY_NAME_RUNTIME = re.compile(r"ir/interpret\.py|emit/wheel\.py|engine/.*\.py")
"""Only op semantics, the wheel writer and the reference engine touch the runtime, which is an island."""

SOURCES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Absolute names of modules a file imports, in functions too; relative imports resolved."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (above, node.module) if part)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def layer(name: str) -> str:
    """``specc.ir.core`` -> ``ir``."""
    return name.split(".")[1] if name.startswith("specc.") else ""


def parts(path: Path) -> str:
    """Path below ``specc/``."""
    return path.relative_to(PACKAGE).as_posix()


def test_every_file_has_a_layer() -> None:
    names = {parts(path).partition("/")[0].removesuffix(".py") for path in SOURCES}
    assert names - {"__init__", "runtime"} == set(LAYERS)


@pytest.mark.parametrize("path", SOURCES, ids=parts)
def test_imports_go_down(path: Path) -> None:
    own = parts(path).partition("/")[0].removesuffix(".py")
    if own in ("runtime", "__init__"):
        return
    for name in imports(path):
        other = layer(name)
        if (
            not other
            or other == "runtime"
            or (not (PACKAGE / other).exists() and not (PACKAGE / f"{other}.py").exists())
        ):
            continue
        assert LAYERS.index(other) <= LAYERS.index(own), f"{parts(path)} imports {name}"


@pytest.mark.parametrize("path", [path for path in SOURCES if parts(path).startswith("runtime/")], ids=parts)
def test_the_runtime_is_an_island(path: Path) -> None:
    """It is copied into wheels: nothing of specc outside itself, and of others only torch and CUDA's bindings."""
    for name in imports(path):
        if name.startswith("specc"):
            assert name == "specc.runtime" or name.startswith("specc.runtime."), name
        else:
            assert name.split(".")[0] in {*sys.stdlib_module_names, "torch", "cuda"}, name
    assert "specc.runtime" not in path.read_text(), "an absolute import would not survive the copy"


def test_who_names_the_runtime() -> None:
    named = {parts(path) for path in SOURCES if any(layer(name) == "runtime" for name in imports(path))}
    outside = {path for path in named if not path.startswith("runtime/")}
    assert {path for path in outside if not MAY_NAME_RUNTIME.fullmatch(path)} == set()


def code_words(path: Path) -> set[str]:
    """Words in a file's code: names and strings, but not docstrings and comments."""
    tree = ast.parse(path.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            words |= set(re.findall(r"[A-Za-z]+", node.value))
        elif isinstance(node, ast.Name):
            words |= set(node.id.split("_"))
    return {word.upper() for word in words}


def test_algorithms_are_named_in_few_places() -> None:
    """Their own files, and the default list of names of the configuration. No pass, no kernel."""
    named = {parts(path) for path in SOURCES if {"EAGLE", "STANDALONE"} & code_words(path)}
    allowed = {"config/schema.py"}
    assert {path for path in named if not path.startswith("algorithms/")} == allowed | ENGINE


ENGINE = {"engine/eagle_head.py", "engine/loading.py"}
"""The reference engine runs an EAGLE head, which is a kind of model."""


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
    code = "from pathlib import Path\nfrom specc.config import load_config\nfrom specc.build import build_program\n"
    assert not {"torch", "triton", "transformers"} & loaded_by(
        f"{code}build_program(load_config(Path({str(example)!r})))"
    )
