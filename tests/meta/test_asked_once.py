"""What a word of a key means for a program is asked of a property of the schema: nothing else compares the word."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
from source_files import SOURCES, nodes_of, problems, tree_of

from specc.compiler.config.schema import Verify

WORDS = {"verify": {*get_args(Verify)}, "head": {"engine"}}
"""Keys, and the words of each that decide what a program does."""
HOMES = {"verify": "compiler/config/schema.py", "head": "compiler/config/block.py"}


def compared(path: Path, keys: Collection[str] = tuple(WORDS)) -> Iterator[str]:
    """Comparisons of a key with one of its words."""
    for node in nodes_of(tree_of(path)):
        if isinstance(node, ast.Compare):
            parts = {part for side in (node.left, *node.comparators) for part in ast.walk(side)}
            names = {getattr(part, "attr", getattr(part, "id", None)) for part in parts}
            words = {part.value for part in parts if isinstance(part, ast.Constant)}
            if any(key in names and words & WORDS[key] for key in keys):
                yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("key", WORDS)
def test_words_are_compared_in_one_place(key: str) -> None:
    assert problems(SOURCES, partial(compared, keys=[key])).keys() == {HOMES[key]}


def test_the_scan_finds_what_it_looks_for(tmp_path: Path) -> None:
    path = tmp_path / "rule.py"
    path.write_text("a = file.verify in ('rejection', 'x')\nb = 'engine' != head\nc = file.mask == 'full'\n")
    assert [found.partition(":")[0] for found in compared(path)] == ["1", "2"]
