"""Semantics of the `kv` dialect: slots of tokens, and moves of their keys and values.

A move changes memory, unlike all other ops: the buffers of one model, a tensor T[slots, ...] per layer and kind (keys,
values; or one of latent rows), in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..rounding import Size, round_up
from .convention import Attrs, Dims, Tensors, moves, register, zero_rows


@register("kv.admit")
def kv_admit(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """req_to_token i32[P, C], rows i64[B], seq_lens i64[B] -> rows i64[B], seq_lens i64[B], full i1[B].

    A request has room if 0 <= seq_len <= C - `window`, and seq_len <= `longest` unless that is negative. Without, row
    and length are 0, as of padding rows, which are never full.
    """
    table, rows, seq_lens = operands
    room = table.shape[1] - int(attrs["window"])
    if int(attrs["longest"]) >= 0:
        room = min(room, int(attrs["longest"]))
    return _admitted(rows, seq_lens, room)


@register("kv.admit_blocks")
def kv_admit_blocks(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """block_table i32[P, C], num_blocks i32[P], rows, seq_lens i64[B] -> rows i64[B], seq_lens i64[B], full i1[B].

    As `kv.admit`, of a row with so many blocks of `page` tokens, of at most C.
    """
    table, blocks, rows, seq_lens = operands
    room = blocks[rows].clamp(max=table.shape[1]).to(torch.int64) * int(attrs["page"]) - int(attrs["window"])
    return _admitted(rows, seq_lens, room)


def _admitted(rows: Tensor, seq_lens: Tensor, room: Tensor | int) -> Tensors:
    """Rows and lengths i64[B], 0 of those without room, and who has none."""
    admitted = (rows != 0) & (seq_lens >= 0) & (seq_lens <= room)
    return torch.where(admitted, rows, 0), torch.where(admitted, seq_lens, 0), (rows != 0) & ~admitted


@register("kv.block_slots")
def kv_block_slots(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """block_table i32[P, C], rows i64[B], seq_lens i64[B] -> slots i64[B, X], or i64[D, B, 1] along axis D.

    Entry i is the slot of position p = seq_lens[b] + offset + i: block p // page of the row, place p % page in it;
    padding rows: slot `padding`. `kv.admit_blocks` saw to the room.
    """
    table, rows, seq_lens = operands
    axis, page = attrs["axis"], int(attrs["page"])
    positions = seq_lens[:, None] + int(attrs["offset"]) + torch.arange(dims[axis], device=rows.device)
    slots = _look_up(table, rows, positions // page) * page + positions % page
    slots = torch.where((rows == 0)[:, None], int(attrs["padding"]), slots)
    return (slots.t()[..., None].contiguous() if axis == "D" else slots,)


@register("kv.positions")
def kv_positions(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Lengths i64[B] -> i64[B, X]: max(0, seq_lens[b] + offset + stride * i); i64[B] without an axis."""
    (seq_lens,) = operands
    if not attrs["axis"]:
        return ((seq_lens + int(attrs["offset"])).clamp(min=0),)
    steps = torch.arange(dims[attrs["axis"]], device=seq_lens.device, dtype=torch.int64)
    return ((seq_lens[:, None] + int(attrs["offset"]) + int(attrs["stride"]) * steps).clamp(min=0),)


@register("kv.advance")
def kv_advance(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Positions i64[...] -> positions + 1."""
    (positions,) = operands
    return (positions + 1,)


@register("kv.verify_slots")
@register("kv.extend_slots")
@register("kv.slots")
def kv_slots(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """req_to_token i32[P, C], rows i64[B], seq_lens i64[B] -> slots i64[B, X], or i64[D, B, 1] along axis D.

    Entry i is the slot of position seq_lens[b] + offset + i; padding rows: slot 0. `kv.admit` saw to the room.
    """
    table, rows, seq_lens = operands
    axis = attrs["axis"]
    positions = seq_lens[:, None] + int(attrs["offset"]) + torch.arange(dims[axis], device=rows.device)
    slots = _look_up(table, rows, positions)
    return (slots.t()[..., None].contiguous() if axis == "D" else slots,)


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
    slots = _look_up(table, rows, positions).view(rows.shape[0], dims["K"], dims["D"])
    return (slots.permute(2, 0, 1).contiguous(),)


def branch_run(base: Size, page: int, room: int) -> Size:
    """Positions from one branch to the next: room and the partly filled page before `base`, in whole pages."""
    return round_up(base % page + room, page)


def _look_up(table: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """Slots i64[B, X] of positions i64[B, X]; padding rows: slot 0."""
    padding = rows == 0
    slots = table[rows[:, None], torch.where(padding[:, None], 0, positions)].to(torch.int64)
    return zero_rows(slots, padding)


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
    found = (table[rows[:, None, None], torch.where(valid, at, 0)].to(torch.int64) for at in (sources, targets))
    _copy(buffers, *(slots.flatten() for slots in torch.broadcast_tensors(*found)))


def _copy(buffers: Sequence[Tensor], sources: Tensor, targets: Tensor) -> None:
    """Copy rows of every buffer; advanced indexing on the right reads all of them first.

    What is not to be copied is a slot that is its own source: the number of rows is known without the device.
    """
    for buffer in buffers:
        raw = buffer.view(torch.uint8) if buffer.dtype.itemsize == 1 else buffer
        raw[targets] = raw[sources]
