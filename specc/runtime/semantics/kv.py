"""Semantics of the `kv` dialect: positions and slots of tokens; those in blocks, and of branches, are beside it."""

from __future__ import annotations

import torch
from torch import Tensor

from .convention import Attrs, Dims, Tensors, register, zero_rows


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
    return admitted(rows, seq_lens, room)


def admitted(rows: Tensor, seq_lens: Tensor, room: Tensor | int) -> Tensors:
    """Rows and lengths i64[B], 0 of those without room, and who has none."""
    admitted = (rows != 0) & (seq_lens >= 0) & (seq_lens <= room)
    return torch.where(admitted, rows, 0), torch.where(admitted, seq_lens, 0), (rows != 0) & ~admitted


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
    slots = look_up(table, rows, positions)
    return (slots.t()[..., None].contiguous() if axis == "D" else slots,)


def look_up(table: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """Slots i64[B, X] of positions i64[B, X]; padding rows: slot 0."""
    padding = rows == 0
    slots = table[rows[:, None], torch.where(padding[:, None], 0, positions)].to(torch.int64)
    return zero_rows(slots, padding)
