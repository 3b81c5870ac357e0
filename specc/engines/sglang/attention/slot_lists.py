"""Slots of keys by branch, in two launches a step: for attention that reads lists of slots and a mask of bits.

flashinfer counts a request's keys as (entries of its list - 1) * p + entries of its last page, with p = 1. Lists here
have one length that never changes, and the last page what is then missing, a number below 0: so all forwards of a step
read the same lists, and only the last pages' entries say how far.

Sizes: b rows of the batch or its bucket, S steps, of which the first D = max(S - 1, 0) are forwards of the draft's, K
branches, N nodes, A = S + 1, L committed length of a row, p tokens of the allocator's pages, C columns of the engine's
table.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..._plugin import ServerError
from .step_tables import Tables

PROGRAMS = 16
"""Programs that share the work for one branch's list, or one request's mask."""
COLUMNS = 512
"""Slots, or bytes of a mask, that a program writes at a time."""
LARGEST = 2**31
"""Entries that 32 bits count."""


@triton.jit
def fill_lists(
    slots_ptr: tl.tensor,
    slots_stride: tl.tensor,
    rows_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    lists_ptr: tl.tensor,
    lasts_ptr: tl.tensor,
    BRANCHES: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    S: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    FORWARDS: tl.constexpr,
    SHARES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write what `Lists` holds of branch `program_id(0)`; SHARES programs share its list.

    `slots` i32[rows, C] is the engine's table; `lists` i32[BRANCHES, C], `lasts` i32[D + 2, BRANCHES].
    """
    branch = tl.program_id(0).to(tl.int64)
    b, k = branch // K, branch % K
    length = tl.load(seq_lens_ptr + b)
    row_ptr = slots_ptr + tl.load(rows_ptr + b) * slots_stride
    tail = length % P
    own = k * ((tail + S + P - 1) // P * P)  # behind the text's full pages a branch has pages of its own
    keys = length + tl.where(k == 0, tl.maximum(N, S + 1), D)
    for start in range(tl.program_id(1) * BLOCK, keys, SHARES * BLOCK):
        at = start + tl.arange(0, BLOCK)
        column = at + tl.where(at >= length - tail, own, 0)
        slot = tl.load(row_ptr + column, mask=at < keys, other=0)
        tl.store(lists_ptr + branch * C + at, slot, mask=at < keys)
    if tl.program_id(1) == 0:
        forward = tl.arange(0, FORWARDS)
        last = (length + forward + 2 - C).to(tl.int32)
        tl.store(lasts_ptr + forward * BRANCHES + branch, last, mask=forward < D)
        if k == 0:
            whole = (length + 1 - K * C + tl.where(forward == D, N, S + 1)).to(tl.int32)
            tl.store(lasts_ptr + forward * BRANCHES + b, whole, mask=(forward == D) | (forward == D + 1))


@triton.jit
def pack_mask(
    seq_lens_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    packed_ptr: tl.tensor,
    N: tl.constexpr,
    BYTES: tl.constexpr,
    SHARES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the bits of request `program_id(0)`: for each node its L + N keys, of which it sees L, and those of `mask`.

    `mask` u8[b, N, N] is the program's, `packed` u8[b, BYTES]; the first key is the lowest bit.
    """
    b = tl.program_id(0).to(tl.int64)
    length = tl.load(seq_lens_ptr + b).to(tl.int32)
    keys = length + N
    for start in range(tl.program_id(1) * BLOCK, (keys * N + 7) // 8, SHARES * BLOCK):
        byte = start + tl.arange(0, BLOCK)
        bit = tl.arange(0, 8)[None, :]
        at = byte[:, None] * 8 + bit
        node, key = at // keys, at % keys - length
        seen = tl.load(mask_ptr + b * N * N + node * N + key, mask=(key >= 0) & (node < N), other=1)
        packed = tl.sum((seen != 0).to(tl.int32) << bit, axis=1)
        tl.store(packed_ptr + b * BYTES + byte, packed.to(tl.uint8), mask=byte * 8 < keys * N)


class Lists:
    """Lists of slots and bits of masks, in memory that stays where it is, so that a graph can hold it.

    Args:
        tables: of the same step, for its sizes and the engine's table.

    """

    def __init__(self, tables: Tables) -> None:
        """Nothing is allocated before it is read. ServerError where 32 bits cannot count the entries."""
        self.sizes, self._starts = tables.sizes, tables.starts
        self._slots = tables.slots
        self._columns = self._slots.shape[1]
        self._bytes = -(-self.sizes.nodes * self._columns // 8)
        if max(self._branches * self._columns, self.sizes.largest * self._bytes) >= LARGEST:
            sizes = f"{self._branches} branches of {self._columns} tokens"
            raise ServerError(f"attention lists the slots of {sizes}: more than 32 bits count")

    @property
    def _branches(self) -> int:
        return self.sizes.largest * self.sizes.topk

    @cached_property
    def slots(self) -> Tensor:
        """The slots i32[largest * K * C] of each branch's text and its own tokens; branch 0 has all of the window's."""
        return torch.zeros(self._branches * self._columns, dtype=torch.int32, device=self._slots.device)

    @cached_property
    def _lasts(self) -> Tensor:
        return torch.ones(self.sizes.drafts + 2, self._branches, dtype=torch.int32, device=self._slots.device)

    @cached_property
    def masks(self) -> Tensor:
        """Bits u8[largest * bytes] of the tree masks."""
        return torch.zeros(self.sizes.largest * self._bytes, dtype=torch.uint8, device=self._slots.device)

    def fill(self, batch: Any) -> None:
        """Write the lists of a batch's rows, of which the program has admitted all: there is room for the window."""
        sizes = self.sizes
        launch: Any = fill_lists[(batch.batch_size * sizes.topk, PROGRAMS)]
        launch(
            self._slots,
            self._slots.stride(0),
            batch.req_pool_indices,
            batch.seq_lens,
            self.slots,
            self._lasts,
            BRANCHES=self._branches,
            C=self._columns,
            P=sizes.page,
            S=sizes.steps,
            D=sizes.drafts,
            K=sizes.topk,
            N=sizes.nodes,
            FORWARDS=triton.next_power_of_2(sizes.drafts + 2),
            SHARES=PROGRAMS,
            BLOCK=COLUMNS,
        )

    def pack(self, batch: Any, mask: Tensor) -> None:
        """Write the bits of a batch's masks bool[b, N, N], a node's row saying which nodes it sees (`mask: qlen`)."""
        launch: Any = pack_mask[(batch.batch_size, PROGRAMS)]
        launch(
            batch.seq_lens,
            mask.view(torch.uint8),
            self.masks,
            N=self.sizes.nodes,
            BYTES=self._bytes,
            SHARES=PROGRAMS,
            BLOCK=COLUMNS,
        )

    def drafting(self, step: int, rows: int) -> tuple[Tensor, Tensor]:
        """Of forward `step` of the draft: starts i32[rows * K + 1] of lists, and last pages i32[rows * K]."""
        branches = rows * self.sizes.topk
        return self._starts(branches, self._columns), self._lasts[step, :branches]

    def verifying(self, rows: int) -> tuple[Tensor, Tensor]:
        """Of verify: starts i32[rows + 1] of lists, and last pages i32[rows]."""
        return self._starts(rows, self.sizes.topk * self._columns), self._lasts[self.sizes.drafts, :rows]

    def extending(self, rows: int) -> tuple[Tensor, Tensor]:
        """Of extend, or of the forward over a block, likewise."""
        return self._starts(rows, self.sizes.topk * self._columns), self._lasts[self.sizes.drafts + 1, :rows]

    def mask_starts(self, rows: int) -> Tensor:
        """The byte i32[rows + 1] at which each request's bits begin."""
        return self._starts(rows, self._bytes)
