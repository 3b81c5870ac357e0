"""What a function finds is passed on: a call of one that yields findings, by itself, would lose them all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from source_files import SOURCES, nodes_of, problems, tree_of


def finding(path: Path) -> set[str]:
    """Functions of a file that yield findings."""
    functions = (node for node in nodes_of(tree_of(path)) if isinstance(node, ast.FunctionDef))
    return {node.name for node in functions if node.returns and ast.unparse(node.returns).startswith("Findings[")}


@cache
def public() -> set[str]:
    """Such functions that other files may import."""
    return {name for path in SOURCES for name in finding(path) if not name.startswith("_")}


def lost(path: Path) -> Iterator[str]:
    """Calls whose findings nobody takes."""
    imported = {
        alias.name for node in nodes_of(tree_of(path)) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    names = finding(path) | imported & public()
    for node in nodes_of(tree_of(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in names:
            yield f"{node.lineno}: {ast.unparse(node.value)}"


def test_findings_are_passed_on() -> None:
    assert len(public()) > 10
    assert problems(SOURCES, lost) == {}


def test_the_scan_finds_a_call_that_loses_them(tmp_path: Path) -> None:
    path = tmp_path / "rules.py"
    path.write_text("def _rule(file) -> Findings[None]:\n    yield 1\n\n\ndef all_of(file):\n    _rule(file)\n")
    assert [*lost(path)] == ["6: _rule(file)"]
