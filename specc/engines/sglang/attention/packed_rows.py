"""Rows of a target that requests share out: between which bounds those of a request lie, and up to where they read."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def bound_rows(
    lens_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    ends_ptr: tl.tensor,
    bounds_ptr: tl.tensor,
    rows: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Write up to where each of `rows` requests reads, i32[rows], and between what its packed rows lie, i32[rows + 1].

    A request has `lens` i32[rows] of them from `starts` i32[rows] on, behind `seq_lens` i64[rows] tokens.
    """
    b = tl.arange(0, BLOCK)
    there = b < rows
    count, start = tl.load(lens_ptr + b, mask=there, other=0), tl.load(starts_ptr + b, mask=there, other=0)
    tl.store(ends_ptr + b, (tl.load(seq_lens_ptr + b, mask=there, other=0) + count).to(tl.int32), mask=there)
    tl.store(bounds_ptr + b, start, mask=there)
    tl.store(bounds_ptr + b + 1, start + count, mask=b == rows - 1)


class PackedRows:
    """The bounds of packed rows, in memory that stays where it is, so that a graph can hold it.

    Args:
        largest: rows of the largest bucket.
        device: that of the step.

    """

    def __init__(self, largest: int, device: torch.device) -> None:
        """Allocate for the largest bucket; smaller ones read a part."""
        self._ends = torch.ones(largest, dtype=torch.int32, device=device)
        self._bounds = torch.zeros(largest + 1, dtype=torch.int32, device=device)

    def fill(self, batch: Any, lens: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Lengths i32[rows] that verify reads, and bounds i32[rows + 1] of its queries.

        A request has `lens` i32[rows] of them from `starts` i32[rows] on.
        """
        rows, block = batch.batch_size, triton.next_power_of_2(len(self._ends))
        launch: Any = bound_rows[(1,)]
        launch(lens, starts, batch.seq_lens, self._ends, self._bounds, rows, BLOCK=block)
        return self._ends[:rows], self._bounds[: rows + 1]
