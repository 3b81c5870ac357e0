"""Semantics of the dialects `carry` and `relay`: state between steps, in pools T[P, ...], an op's last operand."""

from __future__ import annotations

import torch
from torch import Tensor

from .convention import DTYPES, Attrs, Dims, Tensors, register, stores, zero_rows


@register("carry.load")
def carry_load(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows i64[B], pool T[P, ...] -> T[B, ...]: the rows of the pool; padding rows: 0."""
    rows, pool = operands
    return (zero_rows(pool[rows], rows == 0),)


@stores("relay.publish")
@stores("carry.store")
def carry_store(operands: Tensors, pool: Tensor) -> Tensor:
    """Rows i64[B], value T[B, ...], pool T[P, ...] -> what the rows become; padding rows store nothing.

    A value that only lacks or has extra axes of size 1 is reshaped to the pool's row.
    """
    rows, value = operands
    value = value.reshape(rows.shape[0], *pool.shape[1:])
    active = (rows != 0).view(-1, *[1] * (pool.ndim - 1))
    return torch.where(active, value, pool[:1])


@register("carry.convert")
def carry_convert(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Integers [B, ...] -> the same as `dtype`, of whose bits the lowest are kept."""
    return (operands[0].to(DTYPES[attrs["dtype"]]),)


@stores("carry.append")
def carry_append(operands: Tensors, pool: Tensor) -> Tensor:
    """Rows i64[B], seq_lens i64[B], values T[B, A], count i32[B], pool T[P, L] -> what the rows become.

    values[b, i], i < count[b], replaces entry (seq_lens[b] + 1 + i) % L of its row; padding rows store nothing.
    """
    rows, seq_lens, values, count = operands
    size, written = pool.shape[1], count[:, None].clamp(max=values.shape[1])
    first = (torch.arange(size, device=rows.device) - seq_lens[:, None] - 1) % size
    last = first + (written - 1 - first) // size * size  # of the values that come to an entry
    ring = torch.where(first < written, values.gather(1, last.clamp(min=0)), pool[rows])
    return carry_store((rows, ring), pool)


@stores("carry.count")
def carry_count(operands: Tensors, pool: Tensor) -> Tensor:
    """Rows i64[B], values i32[B, ...][, count i32[B]], pool i32[P, V] -> what the rows become.

    2 more in the words of values[b, i], i < count[b]; padding rows store nothing.
    """
    rows, values, *count = operands
    values = values[:, None].flatten(1).to(torch.int64)
    columns = torch.arange(values.shape[1], device=rows.device).expand(values.shape)
    counted = columns < count[0][:, None] if count else columns >= 0
    return carry_store((rows, pool[rows].scatter_add(1, values, 2 * counted.to(torch.int32))), pool)
