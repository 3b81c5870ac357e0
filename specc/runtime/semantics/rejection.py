"""Rejection sampling of a chain's drafts in plain torch, see `reference`.

Drafts were drawn from q, the softmax of their own logits; what is emitted is distributed as the target's p. Neither is
kept as a row: `sample.mass` says what makes probabilities of logits, and whoever needs one computes it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .convention import Attrs, Dims, Tensors, comparable, register, zero_rows
from .sample import sample_draw, uniforms


@register("sample.mass")
def sample_mass(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """What probabilities are made of, and one of them.

    logits T[B, ..., V], rows i64[B], scales f32[B, ...], entries i64[B, ...][, cuts f32[B, ...]] -> f32[B, ..., 3]: the
    largest logit that is not below the cut, infinite where it is no f32 times the scale, the sum of exp((x - largest) *
    scale), which is 1 where the largest is infinite or the scale is 0 (that of scale 1 there if `unscaled`), and the
    probability of the entry `ahead` further in `entries`, 0 of a number that is no entry, 1 where the scale is 0.
    """
    logits, rows, scales, entries, *cuts = operands
    values = _above(logits, scales, cuts)
    top = values.amax(dim=-1)
    scaled = values * scales[..., None]
    first = torch.where(scales[..., None] > 0, scaled, values).argmax(dim=-1)  # of several infinite ones
    top = torch.where((top * scales).isinf(), top * scales, top)
    unscaled = bool(attrs.get("unscaled"))
    steep = torch.where(scales > 0, scales, float(unscaled))
    e = torch.where(values == top[..., None], 0.0, values - top[..., None]).double() * steep[..., None]
    total = torch.where(top.isinf() | ~(steep > 0), 1.0, e.exp().sum(dim=-1).clamp(min=1.0)).to(torch.float32)
    entry = _next(entries.view(top.shape)) if attrs["ahead"] else entries.view(top.shape)
    there = (entry >= 0) & (entry < logits.shape[-1])
    mass = torch.stack([top, total], dim=-1)
    chance = _probabilities(values, scales, mass, first).gather(-1, torch.where(there, entry, 0)[..., None])[..., 0]
    chance = torch.where(scales > 0, torch.where(there, chance, 0.0), 1.0)
    return (zero_rows(torch.cat([mass, chance[..., None]], dim=-1), rows == 0),)


@register("sample.weigh")
def sample_weigh(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows, coins i64[B], scales f32[B, n], mass f32[B, n, 3], and the drafts' -> weights f32[B, n]; see the op."""
    rows, coins, scales, mass, *masses = operands
    p, q = mass[:, :-1, 2], torch.stack([each[:, 2] for each in _rows_of(masses)], dim=1)
    u, last = _coins(coins, q.shape[1]), q.shape[1]
    columns = torch.arange(last + 1, device=p.device)
    if attrs["mode"] == "rejection":
        accepted = (q > 0) & (u * q < p)
        count = accepted.to(torch.int64).cumprod(dim=1).sum(dim=1)
        weights = (columns == count[:, None]).to(torch.float32)
    else:
        along = [torch.ones_like(p[:, 0])]
        for i in range(last):
            ratio = along[-1] * p[:, i] / q[:, i]
            along.append(torch.where((q[:, i] > 0) & (ratio > 0), ratio.clamp(max=1.0), 0.0))
        weights = torch.stack(along, dim=1)
        possible = torch.cat([torch.ones_like(u[:, :1], dtype=torch.bool), u < weights[:, 1:]], dim=1)
        possible = possible & (~possible[:, -1:] | (columns == last))
        weights = torch.where(possible, weights, 0.0)
    return (zero_rows(torch.where(scales > 0, weights, 0.0), rows == 0),)


@register("sample.residual")
def sample_residual(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """A token drawn after some nodes of what is left of p, index i32[B, n], and how much that is, sums f32[B, n].

    tokens i64[B, n], logits T[B, n, V], rows i64[B], keys i64[B, n], scales f32[B, n], drawn i32[B, n], mass f32[B, n,
    3], weights f32[B, n][, cuts f32[B, n]][, entries i32[V]], the drafts' masses, the logits that they were drawn from;
    see the op.
    """
    tokens, logits, rows, keys, scales, drawn, mass, weights, *given = operands
    cuts, given = (given[:1], given[1:]) if attrs["cut"] else ([], given)
    entries, given = (given[0], given[1:]) if attrs.get("mapped") else (None, given)
    masses, q = _rows_of(given[: len(given) // 2]), _rows_of(given[len(given) // 2 :])
    wanted = (weights > 0) & (rows != 0)[:, None]
    wanted[:, -1] = False
    wanted &= wanted.cumsum(dim=1) <= int(attrs["most"])
    index, sums = torch.zeros_like(drawn), torch.zeros_like(weights)
    for c in range(len(q)):
        draft, scale = _next(tokens)[:, c], scales[:, c]
        values = _above(logits[:, c], scale, [cut[:, c] for cut in cuts])
        p = _probabilities(values, scale, mass[:, c], drawn[:, c].to(torch.int64))
        left = weights[:, c, None] * p - _probabilities(_of_tokens(comparable(q[c]), entries), scale, masses[c], draft)
        left = left.nan_to_num(nan=0.0).clamp(min=0.0)
        others = torch.arange(p.shape[1], device=p.device) != draft[:, None]
        chances = torch.stack([_normal(torch.where(others, left, 0.0)), _normal(torch.where(others, p, 0.0))])
        some, any_ = (chances > 0).any(dim=-1)
        chance = torch.where(some[:, None], chances[0], chances[1]).log()
        draws, _ = sample_draw((chance, rows, keys[:, c], torch.ones_like(scale)), {"dtype": "i32"}, dims)
        index[:, c] = torch.where(wanted[:, c], torch.where(any_, draws, drawn[:, c]), 0)
        sums[:, c] = torch.where(wanted[:, c], left.double().sum(dim=-1).to(torch.float32), 0.0)
    return index, sums


@register("sample.accept")
def sample_accept(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """The token after every node of a chain, index i32[B, n]; see the op.

    tokens i64[B, n], rows, coins i64[B], drawn i32[B, n], weights f32[B, n], left i32[B, n], sums f32[B, n].
    """
    tokens, rows, coins, drawn, weights, left, sums = operands
    count, columns = tokens.shape[1], torch.arange(tokens.shape[1], device=tokens.device)
    some = weights > 0
    u = _coins(coins, count - 1)
    passed = torch.ones_like(some)
    passed[:, 1:-1] = (u * (sums[:, 1:] + 1 - weights[:, 1:]) < sums[:, 1:])[:, :-1]
    none = torch.full_like(columns, -1)
    end = torch.where(some & passed, columns, none).amax(dim=1, keepdim=True)
    first = torch.where(some, columns, count).amin(dim=1, keepdim=True)
    end = torch.where(end < 0, torch.where(first < count, first, -1), end)
    index = torch.where(columns < end, _next(tokens).to(torch.int32), drawn)
    index = torch.where((columns == end) & (columns < count - 1), left, index)
    return (zero_rows(index, rows == 0),)


def _above(logits: Tensor, scales: Tensor, cuts: list[Tensor]) -> Tensor:
    """Logits f32[..., V] as p is the softmax of them: -inf below the cut, of a request that is not greedy."""
    values = comparable(logits)
    for cut in cuts:
        values = torch.where((scales[..., None] > 0) & (values < cut[..., None]), -torch.inf, values)
    return values


def _probabilities(values: Tensor, scales: Tensor, mass: Tensor, sure: Tensor) -> Tensor:
    """Probabilities f32[..., V] of logits f32; ``sure`` i64[...] has all if the largest is infinite."""
    top, total = mass[..., 0, None], torch.where(mass[..., 1, None] > 1, mass[..., 1, None], 1.0)
    below, scale = values - top, torch.where(scales > 0, scales, 1.0)[..., None]
    e = (torch.where(below <= 0, below, -torch.inf).double() * scale).exp().to(torch.float32) / total
    entry = torch.arange(values.shape[-1], device=values.device)
    e = torch.where(top == torch.inf, (entry == sure[..., None]).to(torch.float32), e)
    return _normal(torch.where(top > -torch.inf, e, 0.0))


def _of_tokens(values: Tensor, entries: Tensor | None) -> Tensor:
    """Logits f32[B, V] of tokens, of those of a draft's entries f32[B, Vd]: -inf of a token that is none of them."""
    if entries is None:
        return values
    return torch.where(entries >= 0, values[:, entries.clamp(min=0).long()], -torch.inf)


def _normal(x: Tensor) -> Tensor:
    """Numbers f32 without those so near to 0 that a GPU rounds them off."""
    return torch.where(x < torch.finfo(torch.float32).tiny, 0.0, x)


def _next(tokens: Tensor) -> Tensor:
    """What stands one column further; the last column is -1, no token."""
    return torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-1)


def _coins(keys: Tensor, count: int) -> Tensor:
    """The first `count` uniforms f32[B, count] of keys i64[B]."""
    return uniforms(torch.arange(count, device=keys.device), keys[:, None])


def _rows_of(parts: Tensors | list[Tensor]) -> list[Tensor]:
    """Rows [B, X] of operands [B, X] or [B, n, X], one after the other."""
    return [row for part in parts for row in (part.unbind(1) if part.dim() > 2 else (part,))]
