"""Health words by name."""

from __future__ import annotations

import pytest

from specc.compiler.ir.ops import health
from specc.runtime.entry.health import FAULTS, faults
from specc.runtime.entry.result import HostResult


def test_every_bit_of_the_compiler_has_a_name() -> None:
    bits = {name.removesuffix("_BIT").lower(): bit for name, bit in vars(health).items() if name.endswith("_BIT")}
    assert bits == {name: bit for bit, name in enumerate(FAULTS)}


@pytest.mark.parametrize(
    ("word", "names"),
    [(0, ()), (1, ("draft",)), (32, ("room",)), (2 | 16, ("target", "tree")), (1 << 9 | 32, ("room", "9"))],
)
def test_words_by_name(word: int, names: tuple[str, ...]) -> None:
    assert faults(word) == names
    assert HostResult({"health": [0, word]}).faults(1) == names
