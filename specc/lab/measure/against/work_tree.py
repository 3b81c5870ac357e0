"""A tree's inputs: logits whose best tokens are far enough apart that rounding decides nothing, and KV buffers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specc.lab.measure.against.work import Work

SPARE = 2
"""Tokens per row that stand out beside the K best."""
GRID = 128
"""Values in [8, 16) that bf16 holds."""
MARGIN = 1e-3
"""Least relative distance between two path scores of which one is kept, in f64: far more than f32 loses."""
DRAWS = 500
"""Of logits, before a tree is too wide for that."""
FOLLOW = 0.75
"""How often a node's row goes on to one given child."""


class TooCloseError(Exception):
    """So wide a tree has too many scores for inputs with which rounding decides nothing."""


class Peaks:
    """Rows of logits of which K + SPARE tokens, anywhere in the row, stand out from the rest and from each other."""

    def __init__(self, logits: Tensor, topk: int, source: torch.Generator) -> None:
        self._logits, self._topk, self._source = logits, topk, source
        logits.clamp_(max=6)
        count = topk + SPARE
        part = logits.shape[-1] // count
        shape, device = (*logits.shape[:-1], count), logits.device
        places = torch.randint(part, shape, generator=source, device=device)
        self._tokens = places + part * torch.arange(count, device=device)
        logits.scatter_(-1, self._tokens, -torch.inf)
        self._rest = logits.double().exp().sum(-1, keepdim=True)
        self._values = torch.zeros(shape, dtype=torch.float64, device=device)
        self.draw(torch.ones(logits.shape[0], dtype=torch.bool, device=device))

    def draw(self, which: Tensor) -> None:
        """New values for some requests, bool[B]."""
        shape = (*self._values.shape[:-1], GRID)
        keys = torch.rand(shape, generator=self._source, device=which.device)
        values = 8 + keys.argsort(-1)[..., : self._values.shape[-1]] / 16
        self._values[which] = values[which].double()
        self._logits.scatter_(-1, self._tokens, self._values.to(self._logits.dtype))

    def top(self) -> tuple[Tensor, Tensor]:
        """The K best: probabilities f64[..., K], descending, and tokens i64[..., K]."""
        odds = self._values.exp()
        p, order = (odds / (self._rest + odds.sum(-1, keepdim=True))).topk(self._topk)
        return p, self._tokens.gather(-1, order)


class TreeWork(Work):
    """A tree step. The target goes on to a child of the node in at least three rows of four that have one.

    It agrees with the tree that grows from what extend leaves, so from the second step on. Only the first step starts
    from other candidates, which shows that extend's results do get carried.
    """

    def arrange(self) -> None:
        """Place the best tokens, draw until every choice is clear, let the target agree, and fill the KV buffers."""
        shape, source = self.shape, self._source
        self._drafts = [Peaks(logits, shape.topk, source) for logits in self.draft_logits]
        self._extend = Peaks(self.extend_logits, shape.topk, source)
        keys = torch.rand(shape.pool, shape.topk, generator=source, device=self.device)
        self.pools["topk_p"] = keys.sort(dim=-1, descending=True).values
        distinct = self.pools["topk_index"] // shape.topk * shape.topk + torch.arange(shape.topk, device=self.device)
        self.pools["topk_index"] = distinct % shape.vocab
        firsts = self.pools["topk_p"][self.rows].double(), self._extend.top()[0]
        for _ in range(DRAWS):
            unclear = torch.minimum(*(self._grow(p)[2] for p in firsts)) < MARGIN
            if not unclear.any():
                break
            for peaks in self._drafts:
                peaks.draw(unclear)
        else:
            raise TooCloseError(f"after {DRAWS} draws some of a tree's scores are still too close to tell them apart")
        self._lead()
        self._fill_kv()

    def settle(self, carried: Mapping[str, Tensor]) -> None:
        """Start from the carried state (P rows each) from now on, at the same lengths as before."""
        self.pools = {name: carried[name].clone() for name in self.pools} | {"seq_lens": self.pools["seq_lens"]}

    def _grow(self, scores: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """From first scores f64[B, K]: all path scores f64[B, C], kept i64[B, K] per step, the least margin f64[B]."""
        topk = self.shape.topk
        parts, kept, margins = [scores], [], []
        for peaks in self._drafts:
            flat = (scores[:, :, None] * peaks.top()[0]).flatten(1)
            best, order = flat.topk(topk + 1)
            margins.append((best[:, :-1] / best[:, 1:] - 1).amin(1))
            parts.append(flat)
            kept.append(order[:, :topk])
            scores = best[:, :topk]
        every = torch.cat(parts, dim=1)
        last = every.topk(self.shape.nodes).values[:, -2:]
        margins.append(last[:, 0] / last[:, 1] - 1)
        return every, kept, torch.stack(margins).amin(0)

    def _lead(self) -> None:
        """The target's argmax at every node: some child of it in the settled tree, or any token."""
        shape, source = self.shape, self._source
        first, tokens = self._extend.top()
        scores, kept, _ = self._grow(first)
        chosen = scores.topk(shape.nodes - 1).indices.sort(dim=1).values
        tokens = torch.cat([tokens, *(peaks.top()[1].flatten(1) for peaks in self._drafts)], dim=1).gather(1, chosen)
        parents = self._parents(chosen, kept)
        going = torch.randint(shape.vocab, (shape.batch, shape.nodes), generator=source, device=self.device)
        for child in range(shape.nodes - 1):
            follow = torch.rand(shape.batch, 1, generator=source, device=self.device) < FOLLOW
            column = parents[:, child, None]
            going.scatter_(1, column, torch.where(follow, tokens[:, child, None], going.gather(1, column)))
        self.target_logits.scatter_(2, going[:, :, None], 100.0)

    def _parents(self, chosen: Tensor, kept: list[Tensor]) -> Tensor:
        """Column i64[B, N - 1] of every chosen candidate's parent."""
        topk = self.shape.topk
        first = torch.arange(-1, topk, device=self.device).expand(len(chosen), -1)
        later = [order + topk + topk * topk * step for step, order in enumerate(kept[:-1])]
        above = torch.cat([first, *later], dim=1).gather(1, chosen // topk)
        return torch.where(above < 0, 0, torch.searchsorted(chosen, above.contiguous()) + 1)

    def _fill_kv(self) -> None:
        """The target's buffers; the draft's (one layer) only where a step copies within them."""
        shape = self.shape
        layers = {"target": shape.layers} | ({"draft": 1} if shape.page > 1 else {})
        for owner, count in layers.items():
            rows = (self.slots, shape.heads, shape.head_dim)
            self.kv[owner] = [self._random(*rows) for _ in range(2 * count)]
