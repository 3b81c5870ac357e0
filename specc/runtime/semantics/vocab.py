"""Semantics of the `vocab` dialect: reductions over a vocabulary."""

from __future__ import annotations

import torch

from .convention import DTYPES, Attrs, Dims, Tensors, bad_rows, comparable, ranking, register, zero_rows


@register("vocab.argmax")
def vocab_argmax(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], rows i64[B] -> index `dtype`[B, ...], bad i1[B, ...]; padding rows: 0, False.

    The largest value, lowest index on ties, NaN as -inf, -0.0 == 0.0; a row of only NaN and -inf: index 0. A row is bad
    if it holds NaN or its largest value is not finite. With `keep` the index has a last axis of length 1 in place of
    the vocabulary.
    """
    logits, rows = operands
    scores = torch.nan_to_num(logits, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    padding = rows == 0
    index = zero_rows(scores.max(dim=-1).indices, padding).to(DTYPES[attrs["dtype"]])  # the first of equal ones
    return index[..., None] if attrs.get("keep") else index, zero_rows(bad_rows(logits), padding)


@register("vocab.topk")
def vocab_topk(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V][, rows i64[B]] -> p f32[B, ..., K], index i64[B, ..., K], bad i1[B, ...].

    The K most probable tokens in descending order, lowest index on ties; p is the f32 softmax over the whole
    vocabulary. NaN counts as -inf; equal infinities share the probability; a row of only NaN and -inf has p 0 and the
    indices 0..K-1. A row is bad as in `vocab.argmax`. Padding rows: 0, 0, False.
    """
    logits, *rest = operands
    scores = comparable(logits)
    best = scores.amax(dim=-1, keepdim=True)
    weights = torch.where(scores == best, 1.0, torch.exp(scores - best))
    bad = bad_rows(logits)
    p = torch.where(best == -torch.inf, 0.0, weights / weights.sum(dim=-1, keepdim=True))
    index = ranking(scores)[..., : dims[attrs.get("axis", "K")]]
    padding = rest[0] == 0 if rest else torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    results = p.gather(-1, index), index, bad
    return tuple(zero_rows(result, padding).contiguous() for result in results)


@register("vocab.row")
def vocab_row(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, n, V], at i64[B] -> the row T[B, V] of each request, the nearest one where there is no such row."""
    logits, at = operands
    chosen = at.clamp(0, logits.shape[1] - 1).view(-1, 1, 1).expand(-1, 1, logits.shape[2])
    return (logits.gather(1, chosen).squeeze(1),)


@register("vocab.translate")
def vocab_translate(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Index i64[B, ...], map i64[Vd], rows i64[B] -> token i64[B, ...]: map[index]; padding rows: 0."""
    index, table, rows = operands
    return (zero_rows(table[index.clamp(0, len(table) - 1)], rows == 0),)
