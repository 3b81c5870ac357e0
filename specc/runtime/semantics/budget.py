"""Reference semantics of the `budget.*` ops; `reference.py` explains the calling convention.

A *packed* value T[B, G, ...] is read flat: rows `starts[b]` to `starts[b] + lens[b] - 1` of B * G are request b's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .convention import Attrs, Dims, Tensors, ranking, register

PULL, KEPT = 2.0, 0.97
"""What counts of drafts begin with, and what of a step's counts is left after the next one."""
PARTS = 1 << 20
"""Whole numbers of which are added up what drafts of a tree are expected to be, so that no order counts."""


@register("budget.only")
def budget_only(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Candidates T[B, n, 1] -> T[B, n]."""
    return (operands[0][:, :, 0].clone(),)


@register("budget.start")
def budget_start(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Probabilities f32[B, 1] of first drafts -> f32[B, S], 0 behind the first."""
    (p,) = operands
    return (torch.nn.functional.pad(p, (0, dims["S"] - 1)),)


@register("budget.append")
def budget_append(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Probabilities f32[B, S], p f32[B, 1] or f32[B, 1, 1] -> the same with p in column `column`."""
    confidence, p = operands
    confidence = confidence.clone()
    confidence[:, int(attrs["column"])] = p.flatten()
    return (confidence,)


@register("budget.largest")
def budget_largest(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Masses f32[B, ..., 3] -> f32[B, ..., keep]: the largest probability of every row, 0 of a row without any."""
    (mass,) = operands
    p = torch.where(mass[..., 0] > -torch.inf, 1.0 / mass[..., 1], 0.0)
    return (p[..., None] if attrs["keep"] else p,)


@register("budget.judged")
def budget_judged(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Masses f32[B, ..., 3] of drafts from `column` on, tokens i64[B, n] -> the same; of no token a row without any."""
    mass, tokens = operands
    first = 1 + int(attrs["column"])
    there = (tokens[:, first : first + mass.shape[1:-1].numel()] >= 0).view(mass.shape[:-1])
    none = torch.cat([mass.new_full((1,), value) for value in (-torch.inf, 1.0, 0.0)])
    return (torch.where(there[..., None], mass, none),)


@register("budget.begin")
def budget_begin(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows i64[B] -> f32[B, 2]: 0 accepted, 0 expected."""
    (rows,) = operands
    return (torch.zeros(len(rows), 2, device=rows.device),)


@register("budget.estimate")
def budget_estimate(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Probabilities f32[B, S], agreement f32[B, 2] -> f32[B, S]: products of those up to each place, corrected.

    `agreement` is how many drafts of the request were accepted, and how many the draft had expected.
    """
    confidence, agreement = operands
    accepted, expected = agreement.unbind(1)
    estimate = _probability(_probability(confidence) * ((accepted + PULL) / (expected + PULL))[:, None])
    for place in range(1, estimate.shape[1]):
        estimate[:, place] *= estimate[:, place - 1]
    return (estimate,)


@register("budget.learn")
def budget_learn(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Agreement f32[B, 2], probabilities f32[B, S], tokens i64[B, n], accept_lens i32[B] -> agreement with a step more.

    Judged are the drafts that are accepted and the first one that is not, if the target had a row for it.
    """
    agreement, confidence, tokens, accept_lens = operands
    place = torch.arange(confidence.shape[1], device=confidence.device)
    accepted = place < accept_lens[:, None] - 1
    judged = (place < accept_lens[:, None]) & (place < (tokens >= 0).sum(1)[:, None] - 1)
    expected = torch.zeros_like(agreement[:, 0])
    for column in range(confidence.shape[1]):  # in this order
        expected = expected + torch.where(judged[:, column], _probability(confidence[:, column]), 0.0)
    step = torch.stack((accepted.sum(1).to(torch.float32), expected), dim=1)
    return ((agreement + step) * KEPT,)


@register("budget.estimate_paths")
def budget_estimate_paths(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Scores f32[B, n], parent i64[B, n + 1], agreement f32[B, 2] -> f32[B, n]: products along paths, corrected.

    A draft is as probable as its path's score is in shares of its parent's. No estimate is above the one before it.
    """
    scores, parent, agreement = operands
    accepted, expected = agreement.unbind(1)
    each = _probability(_shares(scores, parent) * ((accepted + PULL) / (expected + PULL))[:, None])
    each[:, 0] = 1.0
    estimate, above = each, parent
    for _ in range(dims["A"] - 2):  # from a draft up to the root
        at = above.clamp(min=0)
        estimate, above = estimate * torch.where(above > 0, each.gather(1, at), 1.0), parent.gather(1, at)
    return (estimate[:, 1:].cummin(1).values,)


@register("budget.learn_paths")
def budget_learn_paths(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Agreement f32[B, 2], scores f32[B, n], parent and tokens i64[B, n + 1], accept_index, accept_lens -> agreement.

    Judged are the children of accepted nodes that the target had a row for; b * (n + 1) + column is a node.
    """
    agreement, scores, parent, tokens, accept_index, accept_lens = operands
    first = parent.shape[1] * torch.arange(len(parent), device=parent.device)[:, None]
    path = torch.where(accept_index >= 0, accept_index - first, -2)  # no parent of any
    judged = (parent[..., None] == path[:, None]).any(2) & (tokens >= 0)
    found = (_shares(scores, parent) * PARTS).to(torch.int32)
    expected = torch.where(judged, found, 0).sum(1).to(torch.float32) / PARTS
    step = torch.stack(((accept_lens - 1).clamp(min=0).to(torch.float32), expected), dim=1)
    return ((agreement + step) * KEPT,)


def _shares(scores: Tensor, parent: Tensor) -> Tensor:
    """How probable a draft is behind its parent, f32[B, n + 1] by paths' scores f32[B, n]; 0 of what has no parent."""
    score = _probability(torch.nn.functional.pad(scores, (1, 0), value=1.0))
    whole = torch.maximum(score, score.gather(1, parent.clamp(min=0)))
    return torch.where(parent < 0, 0.0, score / torch.where(whole > 0, whole, 1.0))


@register("budget.limit")
def budget_limit(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Tokens i64[B, n], estimates f32[B, e], rows i64[B] -> tokens with -1 where the target has no row for a draft."""
    tokens, estimate, rows = operands
    lens, _ = budget_take((estimate, rows), attrs, dims)
    return budget_cut((tokens, lens), attrs, dims)


@register("budget.take")
def budget_take(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Share B * G rows out: estimates f32[B, e], rows i64[B] -> lens i32[B], starts i32[B].

    A request of the batch has a row for its root, and one more for each of its drafts that is among the most probable:
    the lower place on ties, then the lower request. An estimate that is NaN or negative counts as 0. Padding has none.
    """
    estimate, rows = operands
    lens = _shared(estimate, rows, dims["G"])
    ends = lens.cumsum(0)
    return lens.to(torch.int32), (ends - lens).to(torch.int32)


@register("budget.expect")
def budget_expect(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Estimates f32[B, e], rows i64[B] -> expected tokens f32[B, n]: of each of n pairs `drafts:rows` of `shapes`.

    A request emits one token, and each of its drafts that has a row as often as is estimated; padding emits none.
    """
    estimate, rows = operands
    columns: list[Tensor] = []
    for pair in attrs["shapes"].split(", "):
        drafts, each = map(int, pair.split(":"))
        lens = _shared(estimate[:, :drafts], rows, each)
        expected = (rows != 0).to(torch.float32)
        for place in range(drafts):  # in this order
            expected = expected + torch.where(place < lens - 1, _probability(estimate[:, place]), 0.0)
        columns.append(expected)
    return (torch.stack(columns, dim=1),)


def _shared(estimate: Tensor, rows: Tensor, each: int) -> Tensor:
    """Rows i64[B] of every request, of `each` times as many as there are requests."""
    count, steps = estimate.shape
    live = rows != 0
    order = torch.where(live[:, None], _probability(estimate), -1.0).t().flatten()  # place by place
    place = torch.empty_like(order, dtype=torch.int64)
    place[ranking(order)] = torch.arange(order.numel(), device=order.device)
    roots = live.sum()
    spare = torch.minimum(count * each - roots, roots * steps)
    return torch.where(live, 1 + (place < spare).view(steps, count).sum(0), 0)


@register("budget.cut")
def budget_cut(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Tokens i64[B, n], lens i32[B] -> tokens with -1 from column `lens` on."""
    tokens, lens = operands
    return (torch.where(torch.arange(tokens.shape[1], device=tokens.device) < lens[:, None], tokens, -1),)


@register("budget.pack")
def budget_pack(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Values i64[B, n], lens i32[B], starts i32[B] -> packed i64[B, G], 0 behind the last request's."""
    value, lens, starts = operands
    flat = value.new_zeros(len(value) * dims["G"] + 1)  # the last one takes what has no row
    flat[_places(value.shape[1], lens, starts, len(flat) - 1).flatten()] = value.flatten()
    return (flat[:-1].view(len(value), dims["G"]).contiguous(),)


@register("budget.unpack")
def budget_unpack(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Packed T[B, G, W], lens i32[B], starts i32[B] -> T[B, n, W], 0 from column `lens` on; n by `axis`.

    With a path i32[B, n] of nodes b * N + column the rows of these, 0 where it is -1.
    """
    packed, lens, starts, *paths = operands
    flat = torch.cat((packed.flatten(0, 1), torch.zeros_like(packed[:1, 0])))
    if not paths:
        return (flat[_places(_columns(attrs, dims), lens, starts, len(flat) - 1)],)
    (path,) = paths
    column = path - dims["N"] * torch.arange(len(path), dtype=path.dtype, device=path.device)[:, None]
    return (flat[torch.where(path >= 0, starts[:, None] + column, len(flat) - 1)],)


@register("budget.logits")
def budget_logits(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Packed T[B, G, V], lens i32[B], starts i32[B] -> T[B, n, V], from column `lens` on a request's last row again."""
    packed, lens, starts = operands
    column = torch.minimum(torch.arange(_columns(attrs, dims), device=lens.device), lens[:, None] - 1)
    return (packed.flatten(0, 1)[(starts[:, None] + column).clamp(min=0)],)


def _columns(attrs: Attrs, dims: Dims) -> int:
    """Columns of what is by request."""
    return dims[str(attrs.get("axis", "A"))]


def _places(columns: int, lens: Tensor, starts: Tensor, none: int) -> Tensor:
    """Flat rows i64[B, columns] of a request's columns; `none` of those that have no row."""
    column = torch.arange(columns, device=lens.device)
    return torch.where(column < lens[:, None], starts[:, None] + column, none)


def _probability(p: Tensor) -> Tensor:
    """Numbers from 0 to 1; NaN is 0, and so is what is negative."""
    return torch.nan_to_num(p, nan=0.0).clamp(0.0, 1.0)
