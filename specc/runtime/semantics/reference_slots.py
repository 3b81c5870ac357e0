"""Reference semantics of the ops that ask for room, and of positions and slots; see `reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rounding import Size, round_up
from .convention import Attrs, Dims, Semantics, Tensors, register, zero_rows

SLOT_OPS: dict[str, Semantics] = {}


@register(SLOT_OPS, "kv.admit")
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


@register(SLOT_OPS, "kv.admit_blocks")
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


@register(SLOT_OPS, "kv.block_slots")
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


@register(SLOT_OPS, "kv.positions")
def kv_positions(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Lengths i64[B] -> i64[B, X]: max(0, seq_lens[b] + offset + stride * i); i64[B] without an axis."""
    (seq_lens,) = operands
    if not attrs["axis"]:
        return ((seq_lens + int(attrs["offset"])).clamp(min=0),)
    steps = torch.arange(dims[attrs["axis"]], device=seq_lens.device, dtype=torch.int64)
    return ((seq_lens[:, None] + int(attrs["offset"]) + int(attrs["stride"]) * steps).clamp(min=0),)


@register(SLOT_OPS, "kv.advance")
def kv_advance(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Positions i64[...] -> positions + 1."""
    (positions,) = operands
    return (positions + 1,)


@register(SLOT_OPS, "kv.verify_slots")
@register(SLOT_OPS, "kv.extend_slots")
@register(SLOT_OPS, "kv.slots")
def kv_slots(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """req_to_token i32[P, C], rows i64[B], seq_lens i64[B] -> slots i64[B, X], or i64[D, B, 1] along axis D.

    Entry i is the slot of position seq_lens[b] + offset + i; padding rows: slot 0. `kv.admit` saw to the room.
    """
    table, rows, seq_lens = operands
    axis = attrs["axis"]
    positions = seq_lens[:, None] + int(attrs["offset"]) + torch.arange(dims[axis], device=rows.device)
    slots = _look_up(table, rows, positions)
    return (slots.t()[..., None].contiguous() if axis == "D" else slots,)


@register(SLOT_OPS, "kv.draft_slots")
@register(SLOT_OPS, "kv.branch_slots")
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
