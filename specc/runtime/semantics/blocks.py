"""Semantics of the ops of the `kv` dialect whose slots come in blocks."""

from __future__ import annotations

import torch

from .convention import Attrs, Dims, Tensors, register
from .kv import admitted, look_up


@register("kv.admit_blocks")
def kv_admit_blocks(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """block_table i32[P, C], num_blocks i32[P], rows, seq_lens i64[B] -> rows i64[B], seq_lens i64[B], full i1[B].

    As `kv.admit`, of a row with so many blocks of `page` tokens, of at most C.
    """
    table, blocks, rows, seq_lens = operands
    room = blocks[rows].clamp(max=table.shape[1]).to(torch.int64) * int(attrs["page"]) - int(attrs["window"])
    return admitted(rows, seq_lens, room)


@register("kv.block_slots")
def kv_block_slots(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """block_table i32[P, C], rows i64[B], seq_lens i64[B] -> slots i64[B, X], or i64[D, B, 1] along axis D.

    Entry i is the slot of position p = seq_lens[b] + offset + i: block p // page of the row, place p % page in it;
    padding rows: slot `padding`. `kv.admit_blocks` saw to the room.
    """
    table, rows, seq_lens = operands
    axis, page = attrs["axis"], int(attrs["page"])
    positions = seq_lens[:, None] + int(attrs["offset"]) + torch.arange(dims[axis], device=rows.device)
    slots = look_up(table, rows, positions // page) * page + positions % page
    slots = torch.where((rows == 0)[:, None], int(attrs["padding"]), slots)
    return (slots.t()[..., None].contiguous() if axis == "D" else slots,)
