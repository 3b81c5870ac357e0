"""Names of shapes, and the shape that a name, a number or a tuple means."""

from __future__ import annotations

from typing import Any

import pytest

from specc.runtime.plan.shape import Shape, listed, named

CHAIN, TREE, WIDE, NONE = Shape(3, 1, 4), Shape(3, 4, 16), Shape(5, 4, 24), Shape(0, 4, 1)
KNOWN = [WIDE, TREE, CHAIN, NONE]


def test_names_differ_and_are_found() -> None:
    assert [str(shape) for shape in KNOWN] == ["5x4x24", "3x4x16", "3", "0"]
    for shape in KNOWN:
        assert named(KNOWN, str(shape)) == named(KNOWN, shape) == named(KNOWN, tuple(shape)) == shape
    assert listed(KNOWN) == "0, 3, 3x4x16, 5x4x24"


def test_steps_name_the_only_shape_of_so_many() -> None:
    assert named(KNOWN, 5) == named(KNOWN, "5") == WIDE
    assert named(KNOWN, 3) == CHAIN, "which has that very name"
    assert named([WIDE, TREE, Shape(3, 2, 7)], 3) is None, "there are two"


@pytest.mark.parametrize("wanted", [4, "4", "3x4", "3x4x17", "", "x", None, True, 3.0, [], (3, 1), (3, 1, 5), object()])
def test_others_are_nobodys(wanted: Any) -> None:
    assert named(KNOWN, wanted) is None


def test_words() -> None:
    assert [shape.words for shape in (TREE, CHAIN, NONE)] == [
        "a tree of 15 drafts, 3 deep",
        "a chain of 3 drafts",
        "a chain of 0 drafts",
    ]
    assert [shape.is_tree for shape in KNOWN] == [True, True, False, False]
