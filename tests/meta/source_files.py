"""The files of specc, parsed once for all tests that look at them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "specc"
SOURCES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file; nobody changes it."""
    return ast.parse(path.read_text())


@cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a syntax tree, which many tests look at: they are looked for once."""
    return (*ast.walk(tree),)


def below(path: Path) -> str:
    """Path below ``specc/``, or below the repository."""
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT).as_posix()


def by_folder(paths: Iterable[Path]) -> pytest.MarkDecorator:
    """A test for the files ``paths`` of each folder of specc: one for every file would take longer than it looks."""

    def folder(path: Path) -> str:
        return below(path).rpartition("/")[0] or "specc"

    folders = [(name, [*files]) for name, files in groupby(sorted(paths, key=folder), key=folder)]
    return pytest.mark.parametrize("paths", [files for _, files in folders], ids=[name for name, _ in folders])


def problems(paths: Iterable[Path], check: Callable[[Path], Iterable[object]]) -> dict[str, list[object]]:
    """What a check finds, by file, of those where it finds anything."""
    return {below(path): list(findings) for path in paths if (findings := [*check(path)])}
