"""Rejection sampling of a chain's drafts in plain torch, see `reference`.

Drafts were drawn from q, the softmax of their own logits; what is emitted is distributed as the target's p.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .convention import Attrs, Dims, Semantics, Tensors, bad_rows, comparable, register, zero_rows
from .reference_sample import sample_draw, uniforms

REJECT_OPS: dict[str, Semantics] = {}


@register(REJECT_OPS, "sample.reject")
def sample_reject(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """The token after every node of a chain of drafts, by rejection sampling.

    tokens i64[B, A], logits T[B, A, V], rows i64[B], coins i64[B], keys i64[B, A], scales f32[B, A][, cuts f32[B, A]],
    then what the drafts were drawn from: logits T[B, ..., V], S rows of a request in all
    -> index i32[B, A], bad i1[B, A].

    With p and q the softmax of logits * scale, p of what is not below the cut, and u uniform, `mode` rejection accepts
    draft d after those before it iff q(d) > 0 and u q(d) < p(d); w is 1. `block` has w = min(1, w p(d) / q(d)) along
    the drafts, and accepts up to the last with u (s + 1 - w) < s, s the sum of max(w p - q, 0) over the row after it;
    all if u < w. After the last one accepted the token is drawn from max(w p - q, 0), but for the draft that is not;
    from p without that draft where nothing is left; from p after all drafts. After other nodes, and where the scale is
    0, it is the argmax.
    """
    tokens, logits, rows, coins, keys, scales, *given = operands
    cuts, q = (given[0], given[1:]) if attrs["cut"] else (None, given)
    drafted = tuple(row for part in q for row in _rows(part))
    chain = _Chain(tokens, logits, scales, cuts, drafted, _coins(coins, len(drafted)))
    count, weight = chain.block() if attrs["mode"] == "block" else chain.rejection()
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    here, accepted = columns == count[:, None], columns < count[:, None]
    key = keys.gather(1, count[:, None])[:, 0]
    drawn, _ = sample_draw((chain.left(count, weight), rows, key, torch.ones_like(weight)), {"dtype": "i64"}, dims)
    best = torch.stack([_first(comparable(chain.target(c))) for c in range(tokens.shape[1])], dim=1)
    bad = torch.stack([bad_rows(chain.target(c)) for c in range(tokens.shape[1])], dim=1)
    found = torch.where(here, drawn[:, None], torch.where(accepted, tokens.roll(-1, dims=1), best))
    index = torch.where(scales > 0, found, best)
    return zero_rows(index, rows == 0).to(torch.int32), zero_rows(bad, rows == 0)


@dataclass(frozen=True)
class _Chain:
    """Tokens i64[B, A], the target's logits T[B, A, V], scales and cuts f32[B, A], S rows T[B, V] of q, u f32[B, S]."""

    tokens: Tensor
    logits: Tensor
    scales: Tensor
    cuts: Tensor | None
    drafted: Tensors
    u: Tensor

    def target(self, column: int) -> Tensor:
        """Logits f32[B, V] that p is the softmax of."""
        values, scale = self.logits[:, column].to(torch.float32), self.scales[:, column, None]
        if self.cuts is not None:
            below = (values < self.cuts[:, column, None]) & (scale > 0)
            values = torch.where(below, -torch.inf, values)
        return torch.where(scale > 0, values * scale, values)

    def p(self, column: int) -> Tensor:
        """The target's probabilities f32[B, V] after a node."""
        return _softmax(self.target(column))

    def q(self, column: int) -> Tensor:
        """What the draft after a node was drawn from: probabilities f32[B, V]."""
        return _softmax(self.drafted[column].to(torch.float32) * self.scales[:, column, None])

    def draft(self, column: int) -> Tensor:
        """The draft i64[B, 1] after a node; a number that is no token counts as the nearest one."""
        return self.tokens[:, column + 1, None].clamp(0, self.logits.shape[-1] - 1)

    def rejection(self) -> tuple[Tensor, Tensor]:
        """How many drafts are accepted i64[B], and the weight f32[B] of what they leave of p."""
        count = torch.zeros_like(self.tokens[:, 0])
        alive = count == 0
        for column in range(len(self.drafted)):
            p, q = (row.gather(1, self.draft(column))[:, 0] for row in (self.p(column), self.q(column)))
            alive = alive & (q > 0) & (self.u[:, column] * q < p)
            count = count + alive
        return count, torch.ones_like(self.u[:, 0])

    def block(self) -> tuple[Tensor, Tensor]:
        """As `rejection`, by Sun et al., Block verification accelerates speculative decoding, algorithm 2."""
        count, weight = torch.zeros_like(self.tokens[:, 0]), torch.ones_like(self.u[:, 0])
        kept, steps = weight, len(self.drafted)
        for column in range(steps):
            p, q = (row.gather(1, self.draft(column))[:, 0] for row in (self.p(column), self.q(column)))
            weight = torch.where(q > 0, (weight * p / q).clamp(max=1.0), 0.0)
            share = weight
            u = self.u[:, column]
            if column + 1 < steps:
                share = (weight[:, None] * self.p(column + 1) - self.q(column + 1)).clamp(min=0.0).sum(-1)
                u = u * (share + 1 - weight)
            accepted = u < share
            count, kept = torch.where(accepted, column + 1, count), torch.where(accepted, weight, kept)
        return count, kept

    def left(self, count: Tensor, weight: Tensor) -> Tensor:
        """Logits f32[B, V] of what the token after `count` i64[B] drafts is drawn from; see `sample_reject`."""
        steps = len(self.drafted)
        target, q, draft = self.target(steps), torch.zeros_like(self.p(steps)), torch.full_like(self.draft(0), -1)
        for column in range(steps):
            here = (count == column)[:, None]
            target = torch.where(here, self.target(column), target)
            q = torch.where(here, self.q(column), q)
            draft = torch.where(here, self.draft(column), draft)
        target = comparable(target)
        others = target.masked_fill(torch.arange(target.shape[1], device=target.device) == draft, -torch.inf)
        rest = (weight[:, None] * _softmax(target) - q).clamp(min=0.0).log()
        rest = torch.where(others == -torch.inf, -torch.inf, rest)
        found = torch.where(_some(rest), rest, torch.where(_some(others), others, target))
        return torch.where((count == steps)[:, None], target, found)


def _coins(keys: Tensor, count: int) -> Tensor:
    """The first `count` uniforms f32[B, count] of keys i64[B]."""
    return uniforms(torch.arange(count, device=keys.device), keys[:, None])


def _rows(part: Tensor) -> Tensors:
    """Rows T[B, V] of T[B, V] or T[B, n, V]."""
    return part.unbind(1) if part.dim() > 2 else (part,)


def _softmax(logits: Tensor) -> Tensor:
    """Probabilities f32[B, V]: NaN has none, of several infinite logits the first has all; 0 where all are -inf."""
    values = comparable(logits)
    top, first = values.max(dim=-1, keepdim=True)
    sure = torch.arange(values.shape[1], device=values.device) == first
    weights = torch.where(top == torch.inf, sure, (values - top.clamp(min=torch.finfo(torch.float32).min)).exp())
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1.0)


def _some(logits: Tensor) -> Tensor:
    """Whether anything can be drawn, i1[B, 1]."""
    return logits.amax(dim=-1, keepdim=True) > -torch.inf


def _first(scores: Tensor) -> Tensor:
    """The first of the largest, i64[B]."""
    return scores.max(dim=-1).indices
