"""Semantics of the ops of the `state` dialect: what becomes of the states that a verification leaves.

They change memory, tensors of the engine's in pairs: T[rows, ...] of what is kept, in place, and T[requests, N, ...] of
what is pending.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .convention import Attrs, Dims, Tensors, moves


@moves("state.select", "target.state")
def state_select(operands: Tensors, attrs: Attrs, dims: Dims, buffers: Sequence[Tensor]) -> None:
    """accept_index i32[B, A] of global node ids, accept_lens i32[B], rows and seq_lens i64[B], and tables.

    The state row state_rows[row], of i32[P], gets what node accept_index[b, accept_len - 1] has left. What the node has
    left after which the text has a multiple of kept_interval i64[1] tokens goes to row kept_rows[row], of i32[P]; it is
    that of the last multiple, and 0 has none. Rows below 0 get nothing, nor does a request that accepts nothing.
    """
    accept_index, accept_lens, rows, seq_lens, state_rows, kept_rows, interval = operands
    nodes, lens = dims["N" if "N" in dims else "A"], accept_lens.to(torch.int64)
    _copy(buffers, _columns(accept_index, lens - 1, nodes), state_rows[rows])
    place = (seq_lens + lens) // interval.clamp(min=1) * interval - seq_lens - 1
    _copy(buffers, _columns(accept_index, torch.where(lens > 0, place, -1), nodes), kept_rows[rows])


def _columns(accept_index: Tensor, places: Tensor, nodes: int) -> Tensor:
    """The nodes i64[B] at `places` i64[B] of the paths, each of its request's N; -1 where there is none."""
    first = torch.arange(len(places), device=places.device) * nodes
    index = accept_index.gather(1, places.clamp(min=0)[:, None])[:, 0].to(torch.int64) - first
    return torch.where((places >= 0) & (index >= 0) & (index < nodes), index, -1)


def _copy(buffers: Sequence[Tensor], columns: Tensor, targets: Tensor) -> None:
    """Copy the states of nodes `columns` i64[B] to state rows `targets` i32[B], where both are 0 or more."""
    for kept, pending in zip(buffers[::2], buffers[1::2], strict=True):
        rows = torch.arange(len(kept), device=targets.device)
        given = (columns >= 0)[:, None] & (targets[:, None] == rows)
        state = pending[torch.arange(len(columns), device=targets.device), columns.clamp(min=0)]
        new = given.any(dim=0).view(-1, *([1] * (kept.dim() - 1)))
        kept.copy_(torch.where(new, state[given.to(torch.int32).argmax(dim=0)], kept))
