"""Names of what a program reads that computes the head of its draft's vocabulary.

This module imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .plan import Input

PART_AXIS = "G"
"""The axis of the records of parts of the vocabulary. It comes first, as that of all ranks' records does."""
HEAD = "draft_head"
"""The table of the head as the engine has it, T[rows, W]; the engine brings it."""
WEIGHT, SCALE = "head_weight", "head_scale"
"""The tables that the program reads, which the runtime makes: the weights [Vd, W] of the entries that are scored, and
f32[Vd], what one of 8 bits is worth."""
ENTRIES = "H"
"""The axis of the entries of the engine's head, of which a program may score a part."""


def brought(tables: Mapping[str, Input], dtype: str) -> dict[str, Input]:
    """Tables with the engine's head, of the draft's dtype, in place of those that are made of it."""
    weight = tables[WEIGHT]
    head = replace(weight, name=HEAD, dtype=dtype, axes=(ENTRIES, weight.axes[1]))
    return {name: one for name, one in tables.items() if name not in (WEIGHT, SCALE)} | {HEAD: head}
