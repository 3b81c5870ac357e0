"""Slots of the last tokens of texts, in one launch a step: for Triton attention of layers that see a window.

The verification of a chain reads such a list and the nodes themselves. With a second KV pool (`windows`) the list names
its slots, and so does what the nodes write.

Sizes: b rows of the batch or its bucket, N nodes, L committed length of a row, W tokens of the window.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..step_tables import COLUMNS, PROGRAMS, Tables


@triton.jit
def fill_windows(
    slots_ptr: tl.tensor,
    slots_stride: tl.tensor,
    rows_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    map_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    firsts_ptr: tl.tensor,
    listed_ptr: tl.tensor,
    written_ptr: tl.tensor,
    count: tl.tensor,
    W: tl.constexpr,
    N: tl.constexpr,
    NODES: tl.constexpr,
    ROWS: tl.constexpr,
    SHARES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write what `WindowLists` holds of request `program_id(0)` of `count`; SHARES programs share its list.

    `slots` i32[rows, C] is the engine's table, `map` i64[slots] or None; `starts`, `firsts` i32, `listed`, `written`
    i64.
    """
    b = tl.program_id(0).to(tl.int64)
    length = tl.load(seq_lens_ptr + b)
    row_ptr = slots_ptr + tl.load(rows_ptr + b) * slots_stride
    other = tl.arange(0, ROWS)
    before = tl.load(seq_lens_ptr + other, mask=other < b, other=0)
    begin = tl.sum(tl.minimum(before, W))
    kept = tl.minimum(length, W)
    first = length - kept
    for start in range(tl.program_id(1) * BLOCK, kept, SHARES * BLOCK):
        at = start + tl.arange(0, BLOCK)
        slot = tl.load(row_ptr + first + at, mask=at < kept, other=0).to(tl.int64)
        if map_ptr is not None:
            slot = tl.load(map_ptr + slot, mask=at < kept, other=0)
        tl.store(listed_ptr + begin + at, slot, mask=at < kept)
    if tl.program_id(1) == 0:
        tl.store(starts_ptr + b, begin.to(tl.int32))
        tl.store(starts_ptr + b + 1, (begin + kept).to(tl.int32), mask=b == count - 1)
        tl.store(firsts_ptr + b, first.to(tl.int32))
        node = tl.arange(0, NODES)
        slot = tl.load(row_ptr + length + node, mask=node < N, other=0).to(tl.int64)
        if map_ptr is not None:
            slot = tl.load(map_ptr + slot, mask=node < N, other=0)
        tl.store(written_ptr + b * N + node, slot, mask=node < N)


class Windows(NamedTuple):
    """What a verification of b requests reads of windows.

    Attributes:
        starts: i32[b + 1], where the list of each request begins.
        listed: i64[at least starts[b]], the slots.
        firsts: i32[b], the position of each list's first token.
        written: i64[b * N], the slots that nodes write.

    """

    starts: Tensor
    listed: Tensor
    firsts: Tensor
    written: Tensor


class WindowLists:
    """The lists of a chain's step, in memory that stays where it is, so that a graph can hold it.

    Args:
        tables: of the same step, for its sizes, the engine's table, and the map of a second pool.
        window: W.

    """

    def __init__(self, tables: Tables, window: int) -> None:
        """Nothing is allocated before it is read."""
        self._tables, self._window = tables, window

    @cached_property
    def _memory(self) -> Windows:
        largest, nodes, device = self._tables.sizes.largest, self._tables.sizes.nodes, self._tables.slots.device
        longest = min(self._window, self._tables.slots.shape[1])
        return Windows(
            torch.zeros(largest + 1, dtype=torch.int32, device=device),
            torch.zeros(largest * longest, dtype=torch.int64, device=device),
            torch.zeros(largest, dtype=torch.int32, device=device),
            torch.zeros(largest * nodes, dtype=torch.int64, device=device),
        )

    def fill(self, batch: Any) -> Windows:
        """Write the lists of a batch's rows, of which the program has admitted all: there is room for the nodes."""
        sizes, memory, rows = self._tables.sizes, self._memory, batch.batch_size
        launch: Any = fill_windows[(rows, PROGRAMS)]
        launch(
            self._tables.slots,
            self._tables.slots.stride(0),
            batch.req_pool_indices,
            batch.seq_lens,
            self._tables.places,
            *(memory.starts, memory.firsts, memory.listed, memory.written),
            rows,
            W=self._window,
            N=sizes.nodes,
            NODES=triton.next_power_of_2(sizes.nodes),
            ROWS=triton.next_power_of_2(sizes.largest),
            SHARES=PROGRAMS,
            BLOCK=COLUMNS,
        )
        return Windows(
            memory.starts[: rows + 1], memory.listed, memory.firsts[:rows], memory.written[: rows * sizes.nodes]
        )
