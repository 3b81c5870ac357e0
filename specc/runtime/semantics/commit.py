"""Semantics of the `commit` dialect: what a request keeps of a step."""

from __future__ import annotations

import torch

from .convention import Attrs, Dims, Tensors, register, zero_rows


@register("commit.compact")
@register("commit.path")
def commit_path(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Values T[B, N, ...], accept_index i32[B, A] of global node ids -> T[B, A, ...]: those on the path, else 0."""
    x, accept_index = operands
    flat = x.reshape(-1, *x.shape[2:])
    index = accept_index.to(torch.int64)
    path = flat[index.clamp(min=0)]
    return (path.masked_fill((index < 0).view(*index.shape, *([1] * (x.dim() - 2))), 0),)


@register("commit.last")
def commit_last(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Values T[B, N, ...], accept_index i32[B, A], accept_lens i32[B] -> T[B, ...]: that of the last accepted node.

    Padding rows: 0.
    """
    x, accept_index, accept_lens = operands
    last = (accept_lens.to(torch.int64) - 1).clamp(min=0)
    node = accept_index.to(torch.int64).gather(1, last[:, None]).squeeze(1)
    return (zero_rows(x.reshape(-1, *x.shape[2:])[node.clamp(min=0)], accept_lens == 0),)


@register("commit.lengths")
def commit_lengths(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Lengths i64[B], accept_lens i32[B], predict i32[B, A] -> new_seq_lens i64[B], bonus i32[B]; padding: 0, 0."""
    seq_lens, accept_lens, predict = operands
    active = accept_lens > 0
    last = (accept_lens.to(torch.int64) - 1).clamp(min=0)
    bonus = predict.gather(1, last[:, None]).squeeze(1)
    new_seq_lens = seq_lens + accept_lens.to(torch.int64)
    return torch.where(active, new_seq_lens, 0), torch.where(active, bonus, 0).to(torch.int32)


@register("commit.extend_ids")
def commit_extend_ids(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Predict i32[B, A], accept_lens i32[B] -> i64[B, A]: the token after accepted node i, 0 past accept_len."""
    predict, accept_lens = operands
    columns = torch.arange(predict.shape[1], device=predict.device)
    return (torch.where(columns < accept_lens[:, None], predict.to(torch.int64), 0),)


@register("commit.select")
def commit_select(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """accept_lens i32[B] -> i64[B]: the flat extend row b * A + max(accept_len - 1, 0)."""
    (accept_lens,) = operands
    first = torch.arange(accept_lens.shape[0], device=accept_lens.device) * dims["A"]
    return (first + (accept_lens.to(torch.int64) - 1).clamp(min=0),)
