"""A draft's head of the vocabulary: logits of hidden rows, and what each part of the vocabulary knows of them.

Records are those of `shards`, with a part of the vocabulary in place of a rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..plan.part_size import part_size
from .convention import Attrs, Dims, Tensors, comparable, ranking, register
from .shards import LAST, LEAST, exp_below, mass_word, order

PARTS = "G"


@register("head.logits")
def head_logits(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Hidden T[B, ..., W], weight [Vd, W][, scale f32[Vd]] -> logits f32[B, ..., Vd]: a product in f32.

    Sums are rounded from f64: torch adds in an order that depends on how many rows and entries there are, as on ranks.
    """
    hidden, weight, *scale = operands
    logits = (hidden.to(torch.float64) @ weight.to(torch.float64).T).to(torch.float32)
    return (logits * scale[0] if scale else logits,)


@register("head.argmax_part")
def head_argmax_part(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Operands as of `head.logits` -> records i64[G, B, ..., 1]; a part without entries knows of -inf at none."""
    logits, first, there = _parts(operands, attrs, dims)
    scores, nan = comparable(logits), (logits.isnan() & there).any(dim=-1)
    best = scores.max(dim=-1)  # the first of equal ones
    place = torch.where(there.any(dim=-1), LAST - (first + best.indices), 0)
    return (_first((order(best.values) << 32) | (place << 1) | nan.to(torch.int64))[..., None],)


@register("head.topk_part")
def head_topk_part(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Operands as of `head.logits` -> records i64[G, B, ..., K + 1]."""
    logits, first, there = _parts(operands, attrs, dims)
    scores, nan = comparable(logits), (logits.isnan() & there).any(dim=-1)
    count = attrs["words"] - 1
    keys = (order(scores) << 32) | (LAST - (first[..., None] + torch.arange(scores.shape[-1], device=scores.device)))
    keys = torch.where(there, keys, LEAST).gather(-1, ranking(scores)[..., :count])
    none = torch.full((*keys.shape[:-1], count - keys.shape[-1]), LEAST, dtype=torch.int64, device=keys.device)
    top = scores.amax(dim=-1)
    mass = torch.where(there, exp_below(scores, top[..., None]), 0.0).sum(dim=-1)
    word = mass_word(top, torch.where(nan, -mass, mass))
    return (_first(torch.cat((keys, none, word[..., None]), dim=-1), 1),)


def _parts(operands: Tensors, attrs: Attrs, dims: Dims) -> tuple[Tensor, Tensor, Tensor]:
    """Logits f32[B, ..., G, n] of parts of n entries, the first entry i64[G] of each, and which are there i1[G, n]."""
    (logits,) = head_logits(operands, attrs, dims)
    entries, parts = logits.shape[-1], dims[PARTS]
    size = part_size(entries, parts)
    padded = torch.nn.functional.pad(logits, (0, parts * size - entries), value=-torch.inf)
    at = torch.arange(parts * size, device=logits.device).view(parts, size)
    return padded.unflatten(-1, (parts, size)), at[:, 0], at < entries


def _first(records: Tensor, behind: int = 0) -> Tensor:
    """Records with the parts as their first axis, which is the last but ``behind``."""
    return records.movedim(-1 - behind, 0).contiguous()
