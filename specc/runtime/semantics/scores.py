"""Semantics of the ops of the `vocab` dialect that score tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from .convention import Attrs, Dims, Tensors, comparable, ranking, register, zero_rows


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
    best = vocab_best((_picked(logits, path), rows), attrs, dims)
    return tuple(values.masked_fill((path < 0)[..., None], 0) for values in best)


def _log_softmax(logits: Tensor) -> Tensor:
    """Log p f32[..., V]; equal infinities share, and a row of only NaN and -inf has nothing but -inf."""
    scores = comparable(logits)
    best = scores.amax(dim=-1, keepdim=True)
    shifted = torch.where(scores == best, 0.0, scores - best)
    return torch.where(best == -torch.inf, -torch.inf, shifted - shifted.exp().sum(dim=-1, keepdim=True).log())


def _picked(logits: Tensor, path: Tensor) -> Tensor:
    """Rows T[B, A, V] of T[B, N, V] by their numbers in the batch, i32[B, A]; any row for a negative one."""
    return logits.flatten(0, 1)[path.to(torch.int64).clamp(min=0)]
