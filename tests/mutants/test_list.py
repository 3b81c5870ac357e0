"""The list of mutants fits the tree: every text is there once, every result is still Python, every test exists."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from run import Mutant, read_mutants  # noqa: E402

MUTANTS = read_mutants()
GOLDEN = ("tests/golden", "tests/meta", "tests/mutants")
"""Tests that compare files with files: they notice everything and understand nothing."""
NONE = [("b", "c", "2 times"), ("z", "c", "0 times"), ("b =", "b", "parse")]


@cache
def functions(file: str) -> set[str]:
    return {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}


def test_no_mutant_is_stale() -> None:
    stale: list[str] = []
    for mutant in MUTANTS:
        try:
            mutant.apply((ROOT / mutant.file).read_text())
        except (OSError, ValueError) as error:
            stale.append(f"{mutant}: {error}")
    assert stale == []


def test_no_mutant_is_listed_twice() -> None:
    listed = Counter((mutant.file, mutant.text, mutant.becomes) for mutant in MUTANTS)
    assert [mutant for mutant, count in listed.items() if count > 1] == []


def test_killers_exist_and_understand_what_they_notice() -> None:
    for test in {test for mutant in MUTANTS for test in mutant.killed_by}:
        file, _, name = test.partition("::")
        assert not file.startswith(GOLDEN), test
        assert name.split("[")[0] in functions(file), test


@pytest.mark.parametrize(("text", "becomes", "message"), NONE)
def test_what_is_no_mutant_is_stale(text: str, becomes: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mutant("file.py", text, becomes).apply("a = 1\nb = a * 2  # b\n")
