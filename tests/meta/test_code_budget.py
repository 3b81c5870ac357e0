"""Files stay short, functions stay short, everything public is documented and annotated."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "specc").rglob("*.py"))
MAX_FILE, MAX_FUNCTION = 400, 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    """All functions, nested ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


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


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_budget(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= MAX_FILE
    for function in functions(tree):
        length = (function.end_lineno or 0) - function.lineno + 1
        assert length <= MAX_FUNCTION, f"{function.name} has {length} lines"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documentation(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "no module docstring"
    missing = [node.name for node in public(tree) if not ast.get_docstring(node)]
    assert missing == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_annotations(path: Path) -> None:
    for function in functions(ast.parse(path.read_text())):
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        bare = [a.arg for a in named if a is not None and a.annotation is None and a.arg not in ("self", "cls")]
        assert not bare, f"{function.name}: {bare}"
        assert function.returns is not None, function.name
