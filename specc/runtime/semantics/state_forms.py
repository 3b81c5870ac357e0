"""Semantics of the ops of the `state` dialect: what becomes of the states that a verification leaves.

Commits change memory, tensors of the engine's: T[rows, ...] of what is kept, in place, and beside it there is what is
pending, T[requests, N, ...]. A point is a number alone: states stay where the verification has left them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .convention import Attrs, Dims, Tensors, moves, register


@moves("state.select", "target.state")
def state_select(operands: Tensors, attrs: Attrs, dims: Dims, buffers: Sequence[Tensor]) -> None:
    """accept_index i32[B, A] of global node ids, accept_lens i32[B], rows and seq_lens i64[B], and tables.

    The state row state_rows[row], of i32[P], gets what node accept_index[b, accept_len - 1] has left. What the node has
    left after which the text has a multiple of kept_interval i64[1] tokens goes to row kept_rows[row], of i32[P]; it is
    that of the last multiple, and 0 has none. Rows below 0 get nothing, nor does a request that accepts nothing.
    """
    accept_index, accept_lens, rows, _, state_rows, kept_rows, _ = operands
    nodes, last = dims["N" if "N" in dims else "A"], accept_lens.to(torch.int64) - 1
    for columns, targets in (
        (_columns(accept_index, last, nodes), state_rows[rows]),
        (_columns(accept_index, _kept_place(operands), nodes), kept_rows[rows]),
    ):
        request = torch.arange(len(columns), device=targets.device)
        for kept, pending in zip(buffers[::2], buffers[1::2], strict=True):
            _put(kept, pending[request, columns.clamp(min=0)], torch.where(columns >= 0, targets, -1))


@moves("state.fold", "target.state")
def state_fold(operands: Tensors, attrs: Attrs, dims: Dims, buffers: Sequence[Tensor]) -> None:
    """Operands as of `state_select`. Of each layer there are six tensors, of what is kept and what nodes add to it.

    T[rows, H, V, K] is the matrix of each head, and f32[requests, N, H] or f32[requests, N, H, K] decays, T[requests,
    N, G, K] keys and f32[requests, N, H, V] updates, see `advanced`. T[rows, channels, W] are the last inputs, and
    T[requests, N, channels] one more. They go to the same rows as by `state_select`, and nowhere from a row below 0.
    """
    accept_index, accept_lens, rows, _, state_rows, kept_rows, _ = operands
    homes, place = state_rows[rows], _kept_place(operands)
    homes = torch.where(accept_lens > 0, homes, -1)
    copies = torch.where((homes >= 0) & (place >= 0), kept_rows[rows], -1)
    nodes, count = dims["N" if "N" in dims else "A"], len(rows)
    request = torch.arange(count, device=rows.device)
    path = [_columns(accept_index, torch.full_like(rows, i), nodes).clamp(min=0) for i in range(accept_index.shape[1])]
    for first in range(0, len(buffers), 6):
        matrix, *records, window, inputs = buffers[first : first + 6]
        for kept, added, step in ((matrix, records, advanced), (window, [inputs], shifted)):
            state = kept[homes.clamp(min=0)].float()
            copied = state
            for i, columns in enumerate(path):
                new = step(state, *(record[request, columns] for record in added))
                state = torch.where(_over(accept_lens > i, state), new, state)
                copied = torch.where(_over(place == i, state), state, copied)
            _put(kept, copied.to(kept.dtype), copies)
            _put(kept, state.to(kept.dtype), homes)


@register("state.begin")
def state_begin(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows i64[B] -> i32[B]: 0, the snapshot that a prefill leaves a state in."""
    (rows,) = operands
    return (torch.zeros_like(rows, dtype=torch.int32),)


@register("state.point")
def state_point(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Point i32[B], accept_index i32[B, A] of global node ids, accept_lens i32[B] -> i32[B]: that of the last node."""
    point, accept_index, accept_lens = operands
    last = accept_lens.to(torch.int64) - 1
    columns = _columns(accept_index, last, int(attrs["nodes"]))[:, None].to(torch.int32)
    return (torch.where(columns[:, 0] >= 0, snapshots(point, columns)[:, 0], point),)


def snapshots(point: Tensor, columns: Tensor) -> Tensor:
    """Where states of columns i[B, n] of a window go, of those i[B] that requests go on from: i[B, n].

    That is n + 1 of column n, or 0 where this one holds what the request goes on from. So a window of N nodes has N + 1
    snapshots, and whatever becomes of a verification, the state before it is there.
    """
    return torch.where(columns + 1 == point[:, None], 0, columns + 1)


def advanced(state: Tensor, decay: Tensor, key: Tensor, update: Tensor) -> Tensor:
    """What a node makes of matrices f32[b, H, V, K]: state * decay + update key^T, f32, rounded after each of the two.

    decay f32[b, H], or f32[b, H, K] where each key channel has one; key T[b, G, K], of which every H / G heads in turn
    share one; update f32[b, H, V].
    """
    over = decay[..., None, None] if decay.dim() == 2 else decay[..., None, :]
    key = key.float().repeat_interleave(state.shape[1] // key.shape[1], dim=1)
    return state * over + update[..., :, None] * key[..., None, :]


def shifted(window: Tensor, added: Tensor) -> Tensor:
    """What a node makes of the last inputs [b, channels, W], by one more of each channel, [b, channels]."""
    return torch.cat((window[..., 1:], added[..., None].to(window.dtype)), dim=-1)


def _kept_place(operands: Tensors) -> Tensor:
    """The place i64[B] on each path behind which a text has a multiple of the interval; -1 of none, or of no path."""
    _, accept_lens, _, seq_lens, _, _, interval = operands
    lens = accept_lens.to(torch.int64)
    place = (seq_lens + lens) // interval.clamp(min=1) * interval - seq_lens - 1
    return torch.where(lens > 0, place, -1).clamp(min=-1)


def _columns(accept_index: Tensor, places: Tensor, nodes: int) -> Tensor:
    """The nodes i64[B] at `places` i64[B] of the paths, each of its request's N; -1 where there is none."""
    first = torch.arange(len(places), device=places.device) * nodes
    index = accept_index.gather(1, places.clamp(min=0)[:, None])[:, 0].to(torch.int64) - first
    return torch.where((places >= 0) & (index >= 0) & (index < nodes), index, -1)


def _put(kept: Tensor, states: Tensor, targets: Tensor) -> None:
    """Store states T[B, ...] in the rows `targets` i32[B] that are 0 or more."""
    given = (targets[:, None] >= 0) & (targets[:, None] == torch.arange(len(kept), device=targets.device))
    new = _over(given.any(dim=0), kept)
    kept.copy_(torch.where(new, states[given.to(torch.int32).argmax(dim=0)], kept))


def _over(flags: Tensor, states: Tensor) -> Tensor:
    """Flags i1[b] as they broadcast over states T[b, ...]."""
    return flags.view(-1, *([1] * (states.dim() - 1)))
