"""Files stay short, functions stay short, everything public is documented and annotated."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_files import SOURCES, below, by_folder, nodes_of, problems, tree_of

MAX_FILE, MAX_FUNCTION = 400, 60
MAX_FILES = {r"engines/sglang/(?!check/|commands/)": 250}
"""Folders whose files are shorter: what an adapter does inside an engine is read with the engine's code beside it."""
MAX_FLAT, MAX_NAMES = 10, 20
"""Most files beside each other in a folder, and most names that several classes have."""
SERIES = (
    "compiler/algorithms",
    "cli",
    "lab/commands",
    "compiler/ir/ops",
    "compiler/kernels",
    "compiler/passes",
    "runtime/semantics",
    "engines/sglang/attention/kinds",
    "engines/sglang/attention/prepare",
)
"""Folders whose files are one of a kind each: an algorithm, a command, a dialect, a family of kernels, a pass, a kind
of attention."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    """All functions, nested ones too."""
    return (node for node in nodes_of(tree) if isinstance(node, Function))


def public(tree: ast.AST, protocol: bool = False) -> Iterator[ast.ClassDef | Function]:
    """Classes and functions that others may use: no underscore in front, reached without one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_") and not _overload(node):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node)


def _overload(node: ast.AST) -> bool:
    """Properties of protocols say what they are by their names."""
    return isinstance(node, Function) and len(node.body) == 1 and ast.unparse(node.body[0]) == "..."


def too_long(path: Path) -> Iterator[str]:
    """The file, and its functions, that have too many lines."""
    if (lines := len(path.read_text().splitlines())) > MAX_FILE:
        yield f"{lines} lines"
    for function in functions(tree_of(path)):
        length = (function.end_lineno or 0) - function.lineno + 1
        if length > MAX_FUNCTION:
            yield f"{function.name} has {length} lines"


def undocumented(path: Path) -> Iterator[str]:
    """What has no docstring, though it must."""
    if not ast.get_docstring(tree_of(path)):
        yield "the module"
    yield from (node.name for node in public(tree_of(path)) if not ast.get_docstring(node))


def unannotated(path: Path) -> Iterator[str]:
    """Functions whose arguments or results lack a type."""
    for function in functions(tree_of(path)):
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        if [a.arg for a in named if a is not None and a.annotation is None and a.arg not in ("self", "cls")]:
            yield f"arguments of {function.name}"
        if function.returns is None:
            yield f"the result of {function.name}"


@by_folder(SOURCES)
def test_budget(paths: list[Path]) -> None:
    assert problems(paths, too_long) == {}


@by_folder(SOURCES)
def test_documentation(paths: list[Path]) -> None:
    assert problems(paths, undocumented) == {}


@by_folder(SOURCES)
def test_annotations(paths: list[Path]) -> None:
    assert problems(paths, unannotated) == {}


@pytest.mark.parametrize("folder", MAX_FILES)
def test_files_of_some_folders_are_shorter(folder: str) -> None:
    files = (path for path in SOURCES if re.match(folder, below(path)))
    lines = {below(path): len(path.read_text().splitlines()) for path in files}
    assert lines
    assert {name: count for name, count in lines.items() if count > MAX_FILES[folder]} == {}


def test_the_scans_find_what_they_look_for(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("def f(x):\n" + "    x += 1\n" * MAX_FUNCTION + "\n" * MAX_FILE)
    assert [*too_long(path)] == [f"{MAX_FILE + MAX_FUNCTION + 1} lines", f"f has {MAX_FUNCTION + 1} lines"]
    assert [*undocumented(path)] == ["the module", "f"]
    assert [*unannotated(path)] == ["arguments of f", "the result of f"]


def test_few_files_are_beside_each_other() -> None:
    folders = Counter(below(path.parent) for path in SOURCES if path.name != "__init__.py")
    assert {name: count for name, count in folders.items() if count > MAX_FLAT and name not in SERIES} == {}


def test_few_classes_share_a_name() -> None:
    """Those of the two engines' adapters do, as what they say of a server, and what a module and a plan both have."""
    classes = {
        (node.name, path) for path in SOURCES for node in nodes_of(tree_of(path)) if isinstance(node, ast.ClassDef)
    }
    shared = [name for name, count in Counter(name for name, _ in classes).items() if count > 1]
    assert len(shared) <= MAX_NAMES, sorted(shared)
