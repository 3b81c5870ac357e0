"""Semantics of the `vocab` dialect: reductions over a vocabulary, and scores of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

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
    index = ranking(scores)[..., : dims["K"]]
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


@register("vocab.logprob")
def vocab_logprob(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], rows i64[B], index i32[B, ...] -> log p f32[B, ...] of the indexed tokens.

    p is that of `vocab.topk`: the f32 softmax over the whole vocabulary, NaN as -inf; 0 gives -inf. Padding rows: 0.
    """
    logits, rows, index = operands
    logprob = _log_softmax(logits).gather(-1, index.to(torch.int64)[..., None])
    return (zero_rows(logprob.squeeze(-1), rows == 0),)


@register("vocab.logprob_path")
def vocab_logprob_path(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, N, V], rows i64[B], index and path i32[B, A] -> f32[B, A]: the same of the rows path; 0 without."""
    logits, rows, index, path = operands
    (logprob,) = vocab_logprob((_picked(logits, path), rows, index), attrs, dims)
    return (logprob.masked_fill(path < 0, 0),)


@register("vocab.best")
def vocab_best(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], rows i64[B] -> tokens i32[B, ..., n], log p f32[B, ..., n]: the `count` n most probable.

    In descending order, lowest index on ties; log p as of `vocab.logprob`. Padding rows: 0, 0.
    """
    logits, rows = operands
    tokens = ranking(comparable(logits))[..., : int(attrs["count"])]
    logprobs = _log_softmax(logits).gather(-1, tokens)
    return zero_rows(tokens.to(torch.int32), rows == 0), zero_rows(logprobs, rows == 0)


@register("vocab.best_path")
def vocab_best_path(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, N, V], rows i64[B], path i32[B, A] -> the same [B, A, n] of the rows path; 0, 0 without."""
    logits, rows, path = operands
    found = vocab_best((_picked(logits, path), rows), attrs, dims)
    return tuple(values.masked_fill((path < 0)[..., None], 0) for values in found)


def _log_softmax(logits: Tensor) -> Tensor:
    """Log p f32[..., V]; equal infinities share, and a row of only NaN and -inf has nothing but -inf."""
    scores = comparable(logits)
    best = scores.amax(dim=-1, keepdim=True)
    shifted = torch.where(scores == best, 0.0, scores - best)
    return torch.where(best == -torch.inf, -torch.inf, shifted - shifted.exp().sum(dim=-1, keepdim=True).log())


def _picked(logits: Tensor, path: Tensor) -> Tensor:
    """Rows T[B, A, V] of T[B, N, V] by their numbers in the batch, i32[B, A]; any row for a negative one."""
    return logits.flatten(0, 1)[path.to(torch.int64).clamp(min=0)]
