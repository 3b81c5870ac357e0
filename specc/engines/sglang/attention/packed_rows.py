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


@triton.jit
def list_seen(
    lens_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    listed_ptr: tl.tensor,
    ends_ptr: tl.tensor,
    requests: tl.tensor,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Write the slots that a packed row sees of its tree, `listed` i32[N], and how many, `ends` i32[1].

    `mask` i32[requests, N, N] and `counts` i32[requests, N] are the program's. A row of nobody sees slot 0 alone.
    """
    row, b, column = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, COLUMNS)
    there = b < requests
    count, start = tl.load(lens_ptr + b, mask=there, other=0), tl.load(starts_ptr + b, mask=there, other=0)
    mine = (start <= row) & (row < start + count)
    owned = tl.sum(mine.to(tl.int32), 0) > 0
    node = tl.sum(tl.where(mine, b * N + row - start, 0), 0)
    tl.store(ends_ptr + row, tl.load(counts_ptr + node, mask=owned, other=1))
    slots = tl.load(mask_ptr + node.to(tl.int64) * N + column, mask=owned & (column < N), other=0)
    tl.store(listed_ptr + row * N + column, slots, mask=column < N)


class PackedRows:
    """The bounds of packed rows, in memory that stays where it is, so that a graph can hold it.

    Args:
        largest: rows of the largest bucket.
        device: that of the step.

    """

    def __init__(self, largest: int, device: torch.device) -> None:
        """Allocate for the largest bucket; smaller ones read a part."""
        self._largest, self._device = largest, device
        self._seen: tuple[Tensor, Tensor] | None = None
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

    def seen(self, lens: Tensor, starts: Tensor, mask: Tensor, counts: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Slots i32[rows, N] that packed rows see of their trees, and how many i32[rows].

        `mask` i32[b, N, N] and `counts` i32[b, N] are a program's, by request; as many rows a request in every batch.
        """
        requests, nodes = counts.shape
        if self._seen is None:
            most = self._largest * (rows // requests)
            listed = torch.zeros(most, nodes, dtype=torch.int32, device=self._device)
            self._seen = listed, torch.ones(most, dtype=torch.int32, device=self._device)
        listed, ends = self._seen
        block, columns = triton.next_power_of_2(requests), triton.next_power_of_2(nodes)
        launch: Any = list_seen[(rows,)]
        launch(lens, starts, mask, counts, listed, ends, requests, N=nodes, BLOCK=block, COLUMNS=columns)
        return listed[:rows], ends[:rows]
