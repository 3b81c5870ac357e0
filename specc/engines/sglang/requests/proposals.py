"""What carried drafts were drawn from: SGLang has probabilities of all tokens, a program logits and their mass.

A draft that is verified by what it was drawn from has to bring that along, whoever drew it. SGLang's probabilities
become logits at the temperature of the request in the program, and the other way round. A draft of which SGLang says
nothing was the most probable one, whatever the noise: all of its distribution is that token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._drawn import GREEDY, row_fields
from .admission import seed_of

if TYPE_CHECKING:
    from .results import Numbers

TEMPERATURE = "sampling_temperature"
"""A field of a program's carry."""


class Proposals:
    """What the carried drafts of requests were drawn from, in the pool rows of a program.

    Args:
        pools: the program's rows T[P, ...] by field.
        numbers: how SGLang numbers drafts.
        reads: whether SGLang's own steps read what drafts were drawn from.
        in_turn: whether drafts of a step hang on each other, so that none of SGLang's may be drawn anew.

    """

    def __init__(self, pools: Any, numbers: Numbers, *, reads: bool, in_turn: bool) -> None:
        """Keep what a program carries of it. If that is nothing, what SGLang reads is made up."""
        self._kept = [(pools[logits], pools[mass]) for logits, mass in row_fields(pools)]
        self._temperatures = pools.get(TEMPERATURE)
        self._numbers, self._reads, self._in_turn = numbers, reads, in_turn

    def take(self, rows: Tensor, drafts: Any, requests: Sequence[Any] = ()) -> None:
        """Keep what drafts of requests in pool rows i64[b] were drawn from, which `drafts`, SGLang's, then forget.

        Drafts of `requests` that SGLang has prefilled are drawn by their seeds, in the place of SGLang's.
        """
        given = getattr(drafts, "draft_probs", None)
        if given is not None:
            drafts.draft_probs = None
        if not self._kept:
            return
        if given is not None:
            given = given.view(len(rows), len(self._kept), -1)
        scales = self._scales(rows)
        for column, (logits, mass) in enumerate(self._kept):
            if given is not None and requests and not self._in_turn:
                drawn = _drawn(given[:, column], self._temperatures[rows], requests)
                drafts.topk_index = self._numbers.tokens(drawn[:, None])
            entries = self._numbers.of(drafts.topk_index)[:, column : column + 1]
            chances = _surely(entries, logits.shape[-1]) if given is None else given[:, column].float()
            values = chances.log() / scales
            largest = values.amax(dim=1, keepdim=True)
            total = ((values - largest) * scales).exp().sum(dim=1, keepdim=True)
            logits[rows] = values.view(len(rows), *logits.shape[1:]).to(logits.dtype)
            mass[rows] = torch.cat([largest, total, chances.gather(1, entries)], dim=1).view(len(rows), *mass.shape[1:])

    def of(self, rows: Tensor, numbers: Tensor) -> Tensor | None:
        """What SGLang's own step reads: probabilities f32[b, V], f32[b, S, V] of several modules, or nothing.

        `numbers` i64[b, S] are the drafts of requests in pool rows i64[b], as SGLang numbers them.
        """
        if not self._reads:
            return None
        if not self._kept:
            sure = [_surely(column[:, None], self._numbers.count) for column in numbers.unbind(1)]
            chances = torch.stack(sure, dim=1)
        else:
            scales = self._scales(rows)[:, None]
            carried = torch.stack([logits[rows].view(len(rows), -1).float() for logits, _ in self._kept], dim=1)
            chances = (carried * scales).softmax(dim=-1)
        return chances if self._in_turn else chances[:, 0]

    def _scales(self, rows: Tensor) -> Tensor:
        """By what logits of requests in pool rows are multiplied f32[b, 1]: 1 / temperature, 1 of a greedy one."""
        temperatures = self._temperatures[rows].view(-1, 1).float()
        return torch.where(temperatures > GREEDY, temperatures, 1.0).reciprocal()


def _surely(entries: Tensor, count: int) -> Tensor:
    """Probabilities f32[b, count] that have all at one entry of i64[b, 1]."""
    return torch.zeros(len(entries), count, device=entries.device).scatter(1, entries, 1.0)


def _drawn(chances: Tensor, temperatures: Tensor, requests: Sequence[Any]) -> Tensor:
    """An entry i64[b] of probabilities f32[b, n] for each request, by its seed and the length of its text.

    The noise is of nothing else's: programs make theirs by another generator. The most probable one of a request that
    is greedy.
    """
    noise = torch.empty_like(chances, dtype=torch.float32).exponential_()
    for row, request in zip(noise, requests, strict=True):
        if (seed := seed_of(request)) is not None:
            place = len(request.origin_input_ids) + len(request.output_ids)
            generator = torch.Generator(row.device).manual_seed(hash((seed, place)))
            row.exponential_(generator=generator)
    draws = (temperatures > GREEDY).view(-1, 1)
    return torch.where(draws, chances / noise.clamp(min=torch.finfo(torch.float32).tiny), chances).argmax(dim=1)
