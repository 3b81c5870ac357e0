"""What the forwards of one step share, in one launch: the table of a request's pages, and its length in each forward.

All forwards of a step read the same slots, of which the scheduler has allocated those that the step writes. So a table
made at the step's beginning holds for the draft's forwards, verify and extend; only lengths differ.

Sizes: b rows of the batch or its bucket, S steps, of which the first D = max(S - 1, 0) are forwards of the draft's, K
branches, N nodes, A = S + 1, L committed length of a row, p tokens of a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 16
"""Programs that share the work for one request."""
COLUMNS = 512
"""Entries of the table that a program writes at a time."""


@triton.jit
def fill_pages(
    row_ptr: tl.tensor,
    map_ptr: tl.tensor | None,
    pages_ptr: tl.tensor,
    pages: tl.tensor,
    P: tl.constexpr,
    SHARES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the first pages i32[pages] of a request's slots i32[C], or of those that a map i64[slots] has for them.

    SHARES programs share them, numbered by their second axis.
    """
    for start in range(tl.program_id(1) * BLOCK, pages, SHARES * BLOCK):  # pyright: ignore[reportArgumentType]
        at = start + tl.arange(0, BLOCK)
        slot = tl.load(row_ptr + at * P, mask=at < pages, other=0)
        if map_ptr is not None:
            slot = tl.load(map_ptr + slot, mask=at < pages, other=0)
        tl.store(pages_ptr + at, (slot // P).to(tl.int32), mask=at < pages)


@triton.jit
def fill_tables(
    slots_ptr: tl.tensor,
    slots_stride: tl.tensor,
    rows_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    pages_ptr: tl.tensor,
    pages_stride: tl.tensor,
    lens_ptr: tl.tensor,
    branches_ptr: tl.tensor,
    branch_lens_ptr: tl.tensor,
    LARGEST: tl.constexpr,
    P: tl.constexpr,
    S: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
    VERIFIED: tl.constexpr,
    WINDOW: tl.constexpr,
    FORWARDS: tl.constexpr,
    BRANCH: tl.constexpr,
    SHARES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write what `Tables` holds of request `program_id(0)`; SHARES programs share its pages.

    `slots` i32[rows, C] is the engine's table, `pages` i32[LARGEST, M]; `lens` i32[D + 3, LARGEST]; of a tree
    `branches` i32[LARGEST, K, BRANCH] and `branch_lens` i32[S, LARGEST, K].
    """
    b = tl.program_id(0).to(tl.int64)
    length = tl.load(seq_lens_ptr + b)
    row_ptr = slots_ptr + tl.load(rows_ptr + b) * slots_stride
    pages = (length + WINDOW + P - 1) // P
    fill_pages(row_ptr, None, pages_ptr + b * pages_stride, pages, P, SHARES, BLOCK)
    if tl.program_id(1) == 0:
        tail = length % P
        forward = tl.arange(0, FORWARDS)
        read = length + tl.where(forward < D, forward + 1, tl.where(forward == D, VERIFIED, S + 1))
        read = tl.where(forward == D + 2, length - tail, read)
        tl.store(lens_ptr + forward * LARGEST + b, read.to(tl.int32), mask=forward < D + 3)
        if K > 1:
            run = (tail + S + P - 1) // P
            column = tl.arange(0, BRANCH)
            for k in range(K):
                at = (length - tail) // P + k * run + column
                slot = tl.load(row_ptr + at * P, mask=column < run, other=0)
                tl.store(branches_ptr + (b * K + k) * BRANCH + column, slot // P)
                reads = (tail + forward + 1).to(tl.int32)
                tl.store(branch_lens_ptr + (forward * LARGEST + b) * K + k, reads, mask=forward < S)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a program's step, see above.

    Attributes:
        largest: rows of the largest bucket.
        steps: S, as a kind of draft has it (`behind`): 1 where drafts are looked up, of which no model has forwards.
        topk: K.
        nodes: N.
        page: p.
        context: tokens of the server's longest text.

    """

    largest: int
    steps: int
    topk: int
    nodes: int
    page: int
    context: int

    @property
    def drafts(self) -> int:
        """Forwards of the draft, D."""
        return max(self.steps - 1, 0)


class Tables:
    """The tables of a step, in memory that stays where it is, so that a graph can hold it.

    Attributes:
        slots: SGLang's `req_to_token` i32[rows, C].
        sizes: of the program's step.
        places: SGLang's map i64[slots + 1] to slots of a second pool; None of a model with one.

    """

    places: Tensor | None = None

    def __init__(self, slots: Tensor, sizes: Sizes, beside: Tables | None = None) -> None:
        """Allocate for the largest bucket, once a step reads them; smaller ones read a part.

        `beside`: those of another shape, whose steps never run at the same time, so that pages have one memory.
        """
        self.slots, self.sizes, self._beside = slots, sizes, beside
        self._columns = -(-sizes.context // sizes.page)
        self._branch = int(triton.next_power_of_2(-(-(sizes.page - 1 + sizes.steps) // sizes.page)))
        self._ranges: dict[tuple[int, int, torch.dtype], Tensor] = {}

    @cached_property
    def _pages(self) -> Tensor:
        if self._beside is not None:
            return self._beside._pages
        whole = -(-self.slots.shape[1] // self.sizes.page) + 1
        return self._made(0, self.sizes.largest, max(whole, self._columns))

    @cached_property
    def _lens(self) -> Tensor:
        return self._made(1, self.sizes.drafts + 3, self.sizes.largest)

    @cached_property
    def _branches(self) -> Tensor:
        return self._made(0, self._trees, self.sizes.topk, self._branch)

    @cached_property
    def _branch_lens(self) -> Tensor:
        return self._made(1, self.sizes.steps, self._trees, self.sizes.topk)

    @property
    def _trees(self) -> int:
        """Rows that have branches."""
        return self.sizes.largest if self.sizes.topk > 1 else 0

    def _made(self, value: int, *shape: int) -> Tensor:
        return torch.full(shape, value, dtype=torch.int32, device=self.slots.device)

    def fill(self, batch: Any) -> None:
        """Write the tables of a batch's rows, of which the program has admitted all: there is room for the window."""
        sizes = self.sizes
        launch: Any = fill_tables[(batch.batch_size, PROGRAMS)]
        launch(
            self.slots,
            self.slots.stride(0),
            batch.req_pool_indices,
            batch.seq_lens,
            self._pages,
            self._pages.stride(0),
            self._lens,
            self._branches,
            self._branch_lens,
            LARGEST=sizes.largest,
            P=sizes.page,
            S=sizes.steps,
            D=sizes.drafts,
            K=sizes.topk,
            VERIFIED=0 if sizes.topk > 1 else sizes.nodes,
            WINDOW=max(sizes.nodes, sizes.steps + 1),
            FORWARDS=triton.next_power_of_2(sizes.drafts + 3),
            BRANCH=self._branch,
            SHARES=PROGRAMS,
            BLOCK=COLUMNS,
        )

    def pages(self, rows: int) -> Tensor:
        """The pages i32[rows, M] of the text and the window, M being those of the server's longest text.

        Rows lie further apart, so that a text at its longest has its window's pages behind them.
        """
        return self._pages[:rows, : self._columns]

    def drafting(self, step: int, rows: int) -> Tensor:
        """Lengths i32[rows] that forward `step` of a chain's draft reads: L + step + 1."""
        return self._lens[step, :rows]

    def verifying(self, rows: int) -> Tensor:
        """Lengths i32[rows] that verify reads of the table: L + N of a chain, the text's L of a tree."""
        return self._lens[self.sizes.drafts, :rows]

    def extending(self, rows: int) -> Tensor:
        """Lengths i32[rows] that extend reads, or the forward over a block: L + A."""
        return self._lens[self.sizes.drafts + 1, :rows]

    def whole(self, rows: int) -> Tensor:
        """Lengths i32[rows] of the text's full pages, which all branches of a tree's draft share."""
        return self._lens[self.sizes.drafts + 2, :rows]

    def branches(self, step: int, rows: int) -> Tensor:
        """The pages i32[rows * K, n] of every branch behind the text's full ones, that forward `step` may read."""
        read = -(-(self.sizes.page - 1 + step + 1) // self.sizes.page)
        return self._branches[:rows].view(-1, self._branch)[:, :read]

    def branch_lens(self, step: int, rows: int) -> Tensor:
        """Lengths i32[rows * K] that forward `step` reads of them."""
        return self._branch_lens[step, :rows].view(-1)

    def starts(self, rows: int, width: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """0, width, ..., rows * width as [rows + 1]: the same memory each time."""
        key = rows, width, dtype
        if key not in self._ranges:
            self._ranges[key] = torch.arange(rows + 1, dtype=dtype, device=self.slots.device) * width
        return self._ranges[key]
