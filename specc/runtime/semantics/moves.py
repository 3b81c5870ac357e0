"""Semantics of the ops of the `kv` dialect for branches: their slots, and moves of keys and values.

A move changes memory, unlike all other ops: the buffers of one model, a tensor T[slots, ...] per layer and kind (keys,
values; or one of latent rows), in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..rounding import Size, round_up
from .convention import Attrs, Dims, Tensors, moves, register
from .kv import look_up


@register("kv.draft_slots")
@register("kv.branch_slots")
def kv_branch_slots(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """req_to_token i32[P, C], rows i64[B], seq_lens i64[B] -> slots i64[D, B, K].

    With base = seq_len + offset and run = room + base % page, rounded up to pages: forward i of branch k has the slot
    of position base + k * run + i; padding rows: slot 0. `kv.admit` saw to the room.
    """
    table, rows, seq_lens = operands
    base = (seq_lens + int(attrs["offset"]))[:, None, None]
    run = branch_run(base, int(attrs["page"]), int(attrs["room"]))
    forwards = torch.arange(dims["D"], device=rows.device)
    branches = torch.arange(dims["K"], device=rows.device)[:, None]
    positions = (base + branches * run + forwards).flatten(1)
    slots = look_up(table, rows, positions).view(rows.shape[0], dims["K"], dims["D"])
    return (slots.permute(2, 0, 1).contiguous(),)


def branch_run(base: Size, page: int, room: int) -> Size:
    """Positions from one branch to the next: room and the partly filled page before `base`, in whole pages."""
    return round_up(base % page + room, page)


@moves("kv.move", "target")
def kv_move(operands: Tensors, attrs: Attrs, dims: Dims, buffers: Sequence[Tensor]) -> None:
    """Slots i64[B, N], accept_index i32[B, A] of global node ids, accept_lens i32[B].

    Slot i of a request's window gets what slot accept_index[i] holds, for i < accept_len. All sources are read before
    anything is written. Padding rows have accept_len 0.
    """
    slots, accept_index, accept_lens = operands
    width = min(slots.shape[1], accept_index.shape[1])  # a tree may have fewer nodes than a path has slots
    targets = slots[:, :width]
    valid = torch.arange(width, device=slots.device) < accept_lens[:, None]
    sources = slots.reshape(-1)[accept_index[:, :width].to(torch.int64).clamp(min=0)]
    _copy(buffers, torch.where(valid, sources, targets), targets)


@moves("kv.duplicate_tail", "draft")
def kv_duplicate_tail(operands: Tensors, attrs: Attrs, dims: Dims, buffers: Sequence[Tensor]) -> None:
    """Table i32[P, C], rows i64[B], seq_lens i64[B]; `offset`, `page`, `room` as in `kv.branch_slots`.

    The base % page tokens before position base = seq_len + offset are copied to the same place of every other branch's
    run. Padding rows copy nothing.
    """
    table, rows, seq_lens = operands
    page, room = int(attrs["page"]), int(attrs["room"])
    base = (seq_lens + int(attrs["offset"]))[:, None, None]
    branches = torch.arange(1, dims["K"], device=rows.device)[:, None]
    place = torch.arange(page - 1, device=rows.device)
    valid = (place < base % page) & (rows != 0)[:, None, None]
    sources = base - base % page + place
    targets = sources + branches * branch_run(base, page, room)
    # What is not copied is the slot of position 0, which no request's branches reach.
    pairs = (table[rows[:, None, None], torch.where(valid, at, 0)].to(torch.int64) for at in (sources, targets))
    _copy(buffers, *(slots.flatten() for slots in torch.broadcast_tensors(*pairs)))


def _copy(buffers: Sequence[Tensor], sources: Tensor, targets: Tensor) -> None:
    """Copy rows of every buffer; advanced indexing on the right reads all of them first.

    What is not to be copied is a slot that is its own source: the number of rows is known without the device.
    """
    for buffer in buffers:
        raw = buffer.view(torch.uint8) if buffer.dtype.itemsize == 1 else buffer
        raw[targets] = raw[sources]
