"""Semantics of the `lattice` dialect: a path over the candidates of a block's places."""

from __future__ import annotations

import torch
from torch import Tensor

from .convention import Attrs, Dims, Tensors, comparable, register, zero_rows

LEAST = 2.0**-126
"""The smallest share of a candidate: what is below, 0 and NaN count as much."""


@register("lattice.walk")
def lattice_walk(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Walk from the root over S places, each of which has k candidates, and choose one of each.

    Operands: rows i64[B]; bonus i32[B]; p f32[B, S, k], shares from 0 to 1, and index i64[B, S, k], tokens; states
    T[B, S, r]; before U[V, r] and after U[V, r]. Result: tokens i64[B, S]. A candidate's score is log(p) and the sum of
    before[t] * states * after[index] over r, in f32, where t is the token chosen before it, the bonus at first. The
    largest score is chosen, the first of equal ones, NaN as -inf. Tokens outside of the tables count as the nearest
    inside. Padding rows: 0. Sums are rounded from f64, as those of `head.logits`. With the attribute `confidence` also
    f32[B, S], the share of each in the softmax of its place's scores; 0 where all of these are -inf, and of padding.
    """
    rows, bonus, p, index, *tables = operands
    token, chosen, shares = bonus.to(torch.int64), list[Tensor](), list[Tensor]()
    for place in range(p.shape[1]):
        scores = _scores(p, index, token, tables, place)
        largest, best = scores.max(dim=-1)  # the first of equal ones
        token = index[:, place].gather(1, best[:, None])[:, 0]
        chosen.append(token)
        total = torch.where(scores == largest[:, None], 1.0, torch.exp(scores - largest[:, None])).sum(dim=-1)
        shares.append(torch.where(largest > -torch.inf, 1.0 / total, 0.0))
    results = [chosen, shares] if attrs.get("confidence") else [chosen]
    return tuple(zero_rows(torch.stack(result, dim=1), rows == 0) for result in results)


@register("lattice.row")
def lattice_row(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Scores of a place's candidates behind a token, as logits f32[B, Vd]: -inf of all that are none.

    Operands: rows i64[B]; p f32[B, S, k]; index i64[B, S, k], different entries of the draft's vocabulary; tokens
    i64[B, S, k], what these are to the target; token i64[B, ...], of which the first counts; the rest as of
    `lattice.walk`. Padding rows: 0.
    """
    rows, p, index, tokens, token, *tables = operands
    place, entries = attrs["place"], dims[attrs["entries"]]
    scores = _scores(p, tokens, token[:, *[0] * (token.dim() - 1)], tables, place)
    row = torch.full((len(rows), entries), -torch.inf, device=p.device)
    return (zero_rows(row.scatter(1, index[:, place].clamp(0, entries - 1), scores), rows == 0),)


def _scores(p: Tensor, tokens: Tensor, token: Tensor, tables: list[Tensor], place: int) -> Tensor:
    """Scores f32[B, k] of the candidates of a place behind tokens i64[B], NaN as -inf."""
    states, before, after = tables
    shares = torch.log(torch.where(p[:, place] >= LEAST, p[:, place], LEAST).clamp(max=1.0))
    known = before[token.clamp(0, len(before) - 1)].to(torch.float32) * states[:, place].to(torch.float32)
    follows = after[tokens[:, place].clamp(0, len(after) - 1)].to(torch.float32)
    pairs = (follows * known[:, None]).to(torch.float64).sum(dim=-1).to(torch.float32)
    return comparable(shares + pairs)
