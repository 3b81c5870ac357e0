"""Reference semantics of the `budget.*` ops; `reference.py` explains the calling convention.

A *packed* value T[B, G, ...] is read flat: rows `starts[b]` to `starts[b] + lens[b] - 1` of B * G are request b's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .convention import Attrs, Dims, Tensors, ranking, register


@register("budget.only")
def budget_only(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Candidates i64[B, n, 1] -> tokens i64[B, n]."""
    return (operands[0][:, :, 0].clone(),)


@register("budget.start")
def budget_start(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Probabilities f32[B, 1] of first drafts -> estimates f32[B, S], 0 behind the first."""
    (p,) = operands
    return (torch.nn.functional.pad(_probability(p), (0, dims["S"] - 1)),)


@register("budget.append")
def budget_append(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Estimates f32[B, S], p f32[B, 1, 1] -> estimates whose entry `column` is the one before it times p."""
    estimate, p = operands
    column, estimate = int(attrs["column"]), estimate.clone()
    estimate[:, column] = estimate[:, column - 1] * _probability(p[:, 0, 0])
    return (estimate,)


@register("budget.product")
def budget_product(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Probabilities f32[B, S, 1] -> estimates f32[B, S]: the product of those up to each place."""
    (p,) = operands
    estimate = _probability(p[:, :, 0])
    for place in range(1, estimate.shape[1]):
        estimate[:, place] *= estimate[:, place - 1]
    return (estimate,)


@register("budget.limit")
def budget_limit(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Tokens i64[B, n], estimates f32[B, S], rows i64[B] -> tokens with -1 where the target has no row for a draft."""
    tokens, estimate, rows = operands
    lens, _ = budget_take((estimate, rows), attrs, dims)
    return budget_cut((tokens, lens), attrs, dims)


@register("budget.take")
def budget_take(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Share B * G rows out: estimates f32[B, S], rows i64[B] -> lens i32[B], starts i32[B].

    A request of the batch has a row for its root, and one more for each of its drafts that is among the most probable:
    the lower place on ties, then the lower request. An estimate that is NaN or negative counts as 0. Padding has none.
    """
    estimate, rows = operands
    count, steps = estimate.shape
    live = rows != 0
    order = torch.where(live[:, None], _probability(estimate), -1.0).t().flatten()  # place by place
    place = torch.empty_like(order, dtype=torch.int64)
    place[ranking(order)] = torch.arange(order.numel(), device=order.device)
    roots = live.sum()
    spare = torch.minimum(count * dims["G"] - roots, roots * steps)
    lens = torch.where(live, 1 + (place < spare).view(steps, count).sum(0), 0)
    ends = lens.cumsum(0)
    return lens.to(torch.int32), (ends - lens).to(torch.int32)


@register("budget.cut")
def budget_cut(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Tokens i64[B, n], lens i32[B] -> tokens with -1 from column `lens` on."""
    tokens, lens = operands
    return (torch.where(torch.arange(tokens.shape[1], device=tokens.device) < lens[:, None], tokens, -1),)


@register("budget.pack")
def budget_pack(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Values i64[B, A], lens i32[B], starts i32[B] -> packed i64[B, G], 0 behind the last request's."""
    value, lens, starts = operands
    flat = value.new_zeros(len(value) * dims["G"] + 1)  # the last one takes what has no row
    flat[_places(value.shape[1], lens, starts, len(flat) - 1).flatten()] = value.flatten()
    return (flat[:-1].view(len(value), dims["G"]).contiguous(),)


@register("budget.unpack")
def budget_unpack(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Packed T[B, G, W], lens i32[B], starts i32[B] -> T[B, A, W], 0 from column `lens` on."""
    packed, lens, starts = operands
    flat = torch.cat((packed.flatten(0, 1), torch.zeros_like(packed[:1, 0])))
    return (flat[_places(dims["A"], lens, starts, len(flat) - 1)],)


@register("budget.logits")
def budget_logits(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Packed T[B, G, V], lens i32[B], starts i32[B] -> T[B, A, V], from column `lens` on a request's last row again."""
    packed, lens, starts = operands
    column = torch.minimum(torch.arange(dims["A"], device=lens.device), lens[:, None] - 1)
    return (packed.flatten(0, 1)[(starts[:, None] + column).clamp(min=0)],)


def _places(columns: int, lens: Tensor, starts: Tensor, none: int) -> Tensor:
    """Flat rows i64[B, columns] of a request's columns; `none` of those that have no row."""
    column = torch.arange(columns, device=lens.device)
    return torch.where(column < lens[:, None], starts[:, None] + column, none)


def _probability(p: Tensor) -> Tensor:
    """Numbers from 0 to 1; NaN is 0, and so is what is negative."""
    return torch.nan_to_num(p, nan=0.0).clamp(0.0, 1.0)
