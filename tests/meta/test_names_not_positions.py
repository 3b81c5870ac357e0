"""Operands and results are read by the names of their op's signature; positions are the IR's own business."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_files import ROOT, SOURCES, below, by_folder, nodes_of, problems, tree_of

# What makes, reads and writes ops of any kind.
PLUMBING = {f"compiler/ir/{name}.py" for name in ("core", "builder", "parser", "printer", "opdef", "infer", "checker")}
FILES = [*SOURCES, *sorted((ROOT / "examples" / "plugin").rglob("*.py"))]


def _is_list(node: ast.expr) -> bool:
    """Whether an expression is all operands, or all results, of something."""
    return isinstance(node, ast.Attribute) and node.attr in ("operands", "results")


def positions(tree: ast.AST) -> Iterator[int]:
    """The lines that take operands or results apart by position: an index, a slice, unpacking, arguments of a call."""
    for node in nodes_of(tree):
        match node:
            case ast.Subscript(value=value) if _is_list(value):
                yield node.lineno
            case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value) if _is_list(value):
                yield node.lineno
            case ast.Call(args=args):
                yield from (arg.lineno for arg in args if isinstance(arg, ast.Starred) and _is_list(arg.value))
            case _:
                pass


@by_folder(path for path in FILES if below(path) not in PLUMBING)
def test_operands_and_results_have_names(paths: list[Path]) -> None:
    assert problems(paths, lambda path: positions(tree_of(path))) == {}


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("op.operands[0]", 1),
        ("value.source.results[:2]", 1),
        ("a, *b = op.operands", 1),
        ("f(m, *op.results)", 1),
        ("op['tokens']", 0),
        ("set(op.results)", 0),
        ("(*op.operands, state)", 0),
    ],
)
def test_the_scan_finds_positions(line: str, count: int) -> None:
    assert len(list(positions(ast.parse(line)))) == count
