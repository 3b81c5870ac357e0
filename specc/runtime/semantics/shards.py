"""Logits that are sharded over ranks: what a rank knows of its columns, and what all of them say together.

Records are i64 words. The first word of an argmax has the order of the largest value in its upper half, so that
comparing words compares values. Below it stands the complement of the token, so that of equal values the lowest token
is first, and its lowest bit says whether there is NaN. A top-k has K words of order and complement, LEAST for none. The
last word of a top-k, and the second of an argmax that is scored, has the largest value and the sum of exp(x - largest),
f32 each; the sum of a top-k is negative where there is NaN. Padding rows: 0.

Sums are added in one order whatever the ranks: chunks of equal length, and halves of what is left, always the first
with the second. What torch would add in an order of its own is added one by one, and exponentials are rounded from f64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .convention import DTYPES, Attrs, Dims, Tensors, comparable, ranking, register, zero_rows

LAST = 0x7FFFFFFF
LOW = 0xFFFFFFFF
LEAST = -(1 << 63)


@register("comm.pad")
def comm_pad(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., Vs], rank i64[1] -> the same with -inf in columns of tokens from `vocab` on."""
    logits, rank = operands
    return (torch.where(_tokens(logits, rank) < attrs["vocab"], logits, -torch.inf),)


@register("vocab.argmax_part")
def vocab_argmax_part(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., Vs], rows i64[B], rank i64[1] -> record i64[1, B, ..., 1 or 2], see above."""
    logits, rows, rank = operands
    scores, nan = comparable(logits), logits.isnan().any(dim=-1)
    best = scores.max(dim=-1)  # the first of equal ones
    place = LAST - (best.indices + rank * logits.shape[-1])
    words = [(order(best.values) << 32) | (place << 1) | nan.to(torch.int64)]
    if attrs["words"] > 1:
        words.append(mass_word(*_mass(scores, attrs["chunks"])))
    return (zero_rows(torch.stack(words, dim=-1), rows == 0)[None],)


@register("vocab.topk_part")
def vocab_topk_part(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., Vs], rows i64[B], rank i64[1] -> record i64[1, B, ..., K + 1], see above."""
    logits, rows, rank = operands
    scores, nan = comparable(logits), logits.isnan().any(dim=-1)
    count = attrs["words"] - 1
    best = ranking(scores)[..., :count]
    keys = (order(scores.gather(-1, best)) << 32) | (LAST - (best + rank * logits.shape[-1]))
    none = torch.full((*keys.shape[:-1], count - keys.shape[-1]), LEAST, dtype=torch.int64, device=keys.device)
    top, mass = _mass(scores, attrs["chunks"])
    word = mass_word(top, torch.where(nan, -mass, mass))
    return (zero_rows(torch.cat((keys, none, word[..., None]), dim=-1), rows == 0)[None],)


@register("vocab.argmax_merge")
def vocab_argmax_merge(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Records i64[R, B, ..., n], rows i64[B] -> index `dtype`[B, ...], bad i1[B, ...], as `vocab.argmax`."""
    records, rows = operands
    words = records[..., 0]
    best = (words >> 1).amax(dim=0)
    bad = (words & 1).amax(dim=0).to(torch.bool) | ~_value(best >> 31).isfinite()
    index = zero_rows(LAST - (best & LAST), rows == 0).to(DTYPES[attrs["dtype"]])
    return index[..., None] if attrs.get("keep") else index, zero_rows(bad, rows == 0)


@register("vocab.logprob_merge")
def vocab_logprob_merge(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Records i64[R, B, ..., 2], rows i64[B] -> f32[B, ...]: the log-probability of the largest logit."""
    records, rows = operands
    top, mass = _joined(*_masses(records))
    return (
        zero_rows(torch.where(top == -torch.inf, top, -torch.log(mass.to(torch.float64)).to(top.dtype)), rows == 0),
    )


@register("vocab.topk_merge")
def vocab_topk_merge(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Records i64[R, B, ..., K + 1], rows i64[B] -> p f32, index i64[B, ..., K], bad i1[B, ...], as `vocab.topk`."""
    records, rows = operands
    ranked = records[..., :-1].movedim(0, -2).flatten(-2).sort(dim=-1, descending=True).values
    keys = ranked[..., : dims[attrs.get("axis", "K")]]
    top, mass = _masses(records)
    nan = torch.signbit(mass).any(dim=0)
    top, mass = _joined(top, mass.abs())
    p = torch.where(top[..., None] == -torch.inf, 0.0, exp_below(_value(keys >> 32), top[..., None]) / mass[..., None])
    index = LAST - (keys & LAST)
    return tuple(zero_rows(result, rows == 0) for result in (p, index, nan | ~top.isfinite()))


def _tokens(logits: Tensor, rank: Tensor) -> Tensor:
    """The tokens i64[Vs] of a rank's columns."""
    return rank * logits.shape[-1] + torch.arange(logits.shape[-1], device=logits.device)


def order(values: Tensor) -> Tensor:
    """Integers that compare as f32 values do, of which none is NaN or -0.0."""
    bits = values.contiguous().view(torch.int32)
    return (bits ^ ((bits >> 31) & LAST)).to(torch.int64)


def _value(order: Tensor) -> Tensor:
    """The f32 of such an integer."""
    bits = order.to(torch.int32)
    return (bits ^ ((bits >> 31) & LAST)).contiguous().view(torch.float32)


def mass_word(top: Tensor, mass: Tensor) -> Tensor:
    """A largest value and a sum as one word."""
    upper, lower = (value.contiguous().view(torch.int32).to(torch.int64) for value in (top, mass))
    return (upper << 32) | (lower & LOW)


def _masses(records: Tensor) -> tuple[Tensor, Tensor]:
    """The largest values and sums f32[R, B, ...] of the last words."""
    words = records[..., -1]
    upper, lower = ((half.to(torch.int32)).contiguous() for half in (words >> 32, (words << 32) >> 32))
    return upper.view(torch.float32), lower.view(torch.float32)


def _mass(scores: Tensor, chunks: int) -> tuple[Tensor, Tensor]:
    """The largest of scores f32[..., Vs], and the sum of exp(x - largest), chunk by chunk."""
    parts = scores.unflatten(-1, (chunks, -1))
    top = parts.amax(dim=-1)
    terms = exp_below(parts, top[..., None])
    while terms.shape[-1] > 1:
        half = (terms.shape[-1] + 1) // 2
        rest = torch.nn.functional.pad(terms[..., half:], (0, 2 * half - terms.shape[-1]))
        terms = terms[..., :half] + rest
    return _joined(top.movedim(-1, 0), terms[..., 0].movedim(-1, 0))


def _joined(top: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Largest values and sums f32[n, ...] of parts, n a power of two, as those of all: a balanced tree."""
    while len(top) > 1:
        (a, b), (x, y) = (value.unflatten(0, (-1, 2)).unbind(1) for value in (top, mass))
        larger = a >= b
        scale = exp_below(torch.minimum(a, b), torch.maximum(a, b)).to(torch.float64)
        # One rounding, as of a fused multiplication and addition.
        mass = (torch.where(larger, y, x) * scale + torch.where(larger, x, y)).to(torch.float32)
        top = torch.maximum(a, b)
    return top[0], mass[0]


def exp_below(x: Tensor, top: Tensor) -> Tensor:
    """exp(x - top) f32 with x <= top; equal infinities differ by 0."""
    return torch.where(x == top, 0.0, (x - top).to(torch.float64)).exp().to(torch.float32)
