"""How many rows of each request the engine's target has read, where the engine says it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ..batch import integers
from ..entry.columns import LENS
from ..errors import BatchError
from ..memory.tables import type_fault
from ..plan.plan import Input, Plan

STARTS = "verify_starts"
"""The input of a step that is the first row of every request, among those of all, which follow each other."""


def share(
    plan: Plan, lens: Sequence[int] | Tensor | None, count: int, device: torch.device
) -> dict[str, list[int] | Tensor]:
    """The columns of a step that say which rows each of `count` requests has; nothing where none are given.

    BatchError unless there is one number for each request, from 1 up to all its nodes.
    """
    if lens is None:
        return {}
    if isinstance(lens, Tensor):
        if fault := type_fault(Input(LENS, "i32", ("b",), "engine"), device, lens, {"b": count}):
            raise BatchError(f"{LENS} {fault}")
        return {LENS: lens, STARTS: lens.cumsum(0, dtype=lens.dtype) - lens}
    checked, most = integers(lens, LENS), plan.size("A")
    if len(checked) != count:
        raise BatchError(f"{LENS} has {len(checked)} numbers for {count} pool rows")
    if any(not 1 <= rows <= most for rows in checked):
        raise BatchError(f"{LENS} is {checked}; every request has 1 to {most} rows")
    return {LENS: checked, STARTS: [end - rows for end, rows in zip(accumulate(checked), checked, strict=True)]}
