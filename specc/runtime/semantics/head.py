"""A draft's head of the vocabulary: logits of hidden rows, and what each part of the vocabulary knows of them.

Records are those of `shards`, with a part of the vocabulary in place of a rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..plan.draft_head.part_size import part_size
from .convention import DTYPES, Attrs, Dims, Tensors, comparable, ranking, register
from .shards import LAST, LEAST, exp_below, mass_word, order

PARTS = "Vp"
BITS = {"i8": 15, "f8": 8}
"""Bits before the point of a row's largest number in units of its worth, by the dtype of its halves."""
MOST = 127 * 256 + 127
"""The largest number of two halves in i8."""


@register("head.halves")
def head_halves(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Hidden T[B, ..., W] -> high, low T[B, ..., W] of 8 bits, worth f32[B, ...].

    ``worth`` is the power of two with which the row's largest number lies in [2^14, 2^15) in i8, in [2^7, 2^8) in f8,
    but 2^-126 at least. In i8 a number is the nearest whole one, `MOST` at most, in f8 the nearest of e4m3, and the
    nearest to what is left: numbers of bf16 are kept as they are down to 2^-7 and 2^-9 of the largest.
    """
    hidden, bits = operands[0].to(torch.float32), BITS[attrs["dtype"]]
    finite = hidden.isfinite()
    rows = torch.where(finite, hidden, 0.0)
    largest = rows.abs().amax(dim=-1)
    exponent = torch.where(largest > 0, torch.frexp(largest).exponent, -126).clamp(min=bits - 126)
    worth = torch.ldexp(torch.ones_like(rows[..., 0]), exponent - bits)
    numbers = rows / worth[..., None]
    if attrs["dtype"] == "i8":
        whole = numbers.round().clamp(max=MOST).to(torch.int32)
        high = (whole + 128) >> 8
        low = whole - (high << 8)
    else:
        high = numbers.to(DTYPES["f8"])
        low = numbers - high.to(torch.float32)
    worth = torch.where(finite.all(dim=-1), worth, torch.nan)
    return high.to(DTYPES[attrs["dtype"]]), low.to(DTYPES[attrs["dtype"]]), worth


@register("head.logits")
def head_logits(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Hidden T[B, ..., W], weight [Vd, W] -> logits f32[B, ..., Vd]: a product in f32.

    Of weights in 8 bits: high, weight, low, worth f32[B, ...], scale f32[Vd]. Sums are rounded from f64: torch adds in
    an order that depends on how many rows and entries there are, as on ranks.
    """
    states, weight, *halves = operands
    if not halves:
        return (_product(states, weight).to(torch.float32),)
    low, worth, scale = halves
    if weight.dtype == DTYPES["i8"]:
        numbers = _product(states, weight).to(torch.float32) * 256 + _product(low, weight).to(torch.float32)
    else:
        numbers = (_product(states, weight) + _product(low, weight)).to(torch.float32)
    return (numbers * worth[..., None] * scale,)


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    return rows.to(torch.float64) @ weight.to(torch.float64).T


@register("head.argmax_part")
def head_argmax_part(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Operands as of `head.logits` -> records i64[Vp, B, ..., 1]; a part without entries knows of -inf at none."""
    (logits,) = head_logits(operands, attrs, dims)
    return _argmax_records(*_parts(logits, dims))


@register("head.biased")
def head_biased(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, S, Vd], token i64[B, ...], first [V, W], second [Vd, W] -> f32[B, Vd]: row `row` and the bias.

    A second table in 8 bits comes with scale f32[Vd].
    """
    logits, token, first, second, *scale = operands
    states = first[token[:, *[0] * (token.dim() - 1)].clamp(0, len(first) - 1)]
    bias = _product(states, second).to(torch.float32)
    return (logits[:, attrs["row"]].to(torch.float32) + (bias * scale[0] if scale else bias),)


@register("head.biased_part")
def head_biased_part(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Operands as of `head.biased` -> records i64[Vp, B, 1], as of `head.argmax_part`."""
    (logits,) = head_biased(operands, attrs, dims)
    return _argmax_records(*_parts(logits, dims))


def _argmax_records(logits: Tensor, first: Tensor, there: Tensor) -> Tensors:
    """Records i64[Vp, B, ..., 1] of parts as `_parts` has them."""
    scores, nan = comparable(logits), (logits.isnan() & there).any(dim=-1)
    best = scores.max(dim=-1)  # the first of equal ones
    place = torch.where(there.any(dim=-1), LAST - (first + best.indices), 0)
    return (_first((order(best.values) << 32) | (place << 1) | nan.to(torch.int64))[..., None],)


@register("head.topk_part")
def head_topk_part(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Operands as of `head.logits` -> records i64[Vp, B, ..., K + 1]."""
    (logits,) = head_logits(operands, attrs, dims)
    logits, first, there = _parts(logits, dims)
    scores, nan = comparable(logits), (logits.isnan() & there).any(dim=-1)
    count = attrs["words"] - 1
    keys = (order(scores) << 32) | (LAST - (first[..., None] + torch.arange(scores.shape[-1], device=scores.device)))
    keys = torch.where(there, keys, LEAST).gather(-1, ranking(scores)[..., :count])
    none = torch.full((*keys.shape[:-1], count - keys.shape[-1]), LEAST, dtype=torch.int64, device=keys.device)
    top = scores.amax(dim=-1)
    mass = torch.where(there, exp_below(scores, top[..., None]), 0.0).sum(dim=-1)
    word = mass_word(top, torch.where(nan, -mass, mass))
    return (_first(torch.cat((keys, none, word[..., None]), dim=-1), 1),)


def _parts(logits: Tensor, dims: Dims) -> tuple[Tensor, Tensor, Tensor]:
    """Logits f32[B, ..., Vp, n] of parts of n entries, the first entry i64[Vp] of each, which there are i1[Vp, n]."""
    entries, parts = logits.shape[-1], dims[PARTS]
    size = part_size(entries, parts)
    padded = torch.nn.functional.pad(logits, (0, parts * size - entries), value=-torch.inf)
    at = torch.arange(parts * size, device=logits.device).view(parts, size)
    return padded.unflatten(-1, (parts, size)), at[:, 0], at < entries


def _first(records: Tensor, behind: int = 0) -> Tensor:
    """Records with the parts as their first axis, which is the last but ``behind``."""
    return records.movedim(-1 - behind, 0).contiguous()
