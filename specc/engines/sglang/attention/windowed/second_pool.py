"""Where layers with a window write and read in a step, if SGLang keeps their keys and values in a pool of their own.

All slots that a step writes are known when it begins, and the second pool has one for each (`windows`). So one launch
looks up all that the forwards of a chain's step need: its pages, and the slots that it writes.

Sizes: as in `step_tables`; W = S + 1 tokens are written of each request, all behind its text.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..step_tables import COLUMNS, PROGRAMS, Sizes, Tables, fill_pages


@triton.jit
def fill_second(
    slots_ptr: tl.tensor,
    slots_stride: tl.tensor,
    rows_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    map_ptr: tl.tensor,
    pages_ptr: tl.tensor,
    pages_stride: tl.tensor,
    written_ptr: tl.tensor,
    by_token_ptr: tl.tensor,
    LARGEST: tl.constexpr,
    P: tl.constexpr,
    W: tl.constexpr,
    WRITES: tl.constexpr,
    SHARES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write what `TwoPools` adds of request `program_id(0)`; SHARES programs share its pages.

    `slots` i32[rows, C] is the engine's table, `map` i64[slots]; `pages` i32[LARGEST, M], `written` i64[LARGEST, W],
    `by_token` i64[W, LARGEST].
    """
    b = tl.program_id(0).to(tl.int64)
    length = tl.load(seq_lens_ptr + b)
    row_ptr = slots_ptr + tl.load(rows_ptr + b) * slots_stride
    pages = (length + W + P - 1) // P
    fill_pages(row_ptr, map_ptr, pages_ptr + b * pages_stride, pages, P, SHARES, BLOCK)
    if tl.program_id(1) == 0:
        token = tl.arange(0, WRITES)
        slot = tl.load(row_ptr + length + token, mask=token < W, other=0)
        second = tl.load(map_ptr + slot, mask=token < W, other=0)
        tl.store(written_ptr + b * W + token, second, mask=token < W)
        tl.store(by_token_ptr + token * LARGEST + b, second, mask=token < W)


class TwoPools(Tables):
    """The tables of a chain's step over two pools; those of `Tables` are of the first."""

    def __init__(self, slots: Tensor, sizes: Sizes, beside: Tables | None, places: Tensor) -> None:
        """See `Tables`; `places` i64[slots + 1] is SGLang's map from slots of the first pool to those of the second."""
        super().__init__(slots, sizes, beside)
        self.places, self._places, self._writes = places, places, sizes.nodes

    @cached_property
    def _second_pages(self) -> Tensor:
        return self._beside._second_pages if isinstance(self._beside, TwoPools) else torch.zeros_like(self._pages)

    @cached_property
    def _written(self) -> Tensor:
        return self._places.new_zeros(self.sizes.largest, self._writes)

    @cached_property
    def _by_token(self) -> Tensor:
        return self._places.new_zeros(self._writes, self.sizes.largest)

    def fill(self, batch: Any) -> None:
        """See `Tables`."""
        super().fill(batch)
        launch: Any = fill_second[(batch.batch_size, PROGRAMS)]
        launch(
            self.slots,
            self.slots.stride(0),
            batch.req_pool_indices,
            batch.seq_lens,
            self._places,
            self._second_pages,
            self._second_pages.stride(0),
            self._written,
            self._by_token,
            LARGEST=self.sizes.largest,
            P=self.sizes.page,
            W=self._writes,
            WRITES=triton.next_power_of_2(self._writes),
            SHARES=PROGRAMS,
            BLOCK=COLUMNS,
        )

    def second_pages(self, rows: int) -> Tensor:
        """The pages i32[rows, M] of the second pool, as `pages` has those of the first; 0 of what it has given back."""
        return self._second_pages[:rows, : self._columns]

    def second_drafting(self, step: int, rows: int) -> Tensor:
        """The slots i64[rows] of the second pool that forward `step` of the draft writes."""
        return self._by_token[step, :rows]

    def second_written(self, rows: int) -> Tensor:
        """The slots i64[rows * W] of the second pool that verify writes, and extend."""
        return self._written[:rows].view(-1)
