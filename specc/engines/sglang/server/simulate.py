"""`SGLANG_SIMULATE_ACC_LEN` for programs: steps of a given accepted length, to time models whose drafts mean nothing.

The program stays as it is. What is changed are the target's scores, behind its forward: along one path of the tree,
or the chain, every node scores the next one highest, and the last one a token that nobody drafted.
"""

from __future__ import annotations

import os
import random
from math import inf, nan
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from ..._plugin import ServerError
from .. import seam
from ..attention.step import Attention
from ..masks import seen
from ..models.forwards import ForwardOutputs, Forwards
from ..parts.parts import Parts

if TYPE_CHECKING:
    from specc.runtime.entry.callbacks import TargetCall, TargetRowsCall

TOKEN = 100
"""What the target says after the accepted path, as in SGLang, or where that is drafted a token behind it."""
HIGHEST = 1e30
LENGTHS = "SPECC_SIMULATE_ACC_LENS"
"""The environment variable of the lengths of single shapes, `3:2.2,5x4x8:2.8`; others have SGLang's one."""
_spec_utils, _sample_length = seam.found(seam.SIMULATED)
STEPS = 4096
"""Accepted lengths are drawn ahead for so many steps, and again from the first on."""


def accepted_by_shape() -> dict[str, float]:
    """The accepted lengths that `SPECC_SIMULATE_ACC_LENS` sets, by shape. ServerError on another text."""
    written = os.environ.get(LENGTHS, "")
    try:
        pairs = [pair.split(":") for pair in filter(None, written.split(","))]
        lengths = {name.strip(): float(length) for name, length in pairs}
    except ValueError:
        lengths = {"": nan}
    if not all(1 <= length < inf for length in lengths.values()):
        raise ServerError(f"{LENGTHS} is a list such as 3:2.2,5x4x8:2.8 of lengths from 1 on, got {written!r}")
    return lengths


def drawn_lengths(mean: float, most: int) -> list[int]:
    """Accepted lengths 1 to `most` of `STEPS` steps of a draft that is right as often at every position.

    SGLang draws the two whole numbers next to the mean, which says of no other shape what it would accept.
    """
    low, high = 0.0, 1.0
    while high - low > 1e-9:  # 1 + r + ... + r^(most - 1) is the mean
        rate = (low + high) / 2
        low, high = (rate, high) if sum(rate**position for position in range(most)) < mean else (low, rate)
    weights = [low**length * (1 - low if length < most - 1 else 1) for length in range(most)]
    return random.choices(range(1, most + 1), weights, k=STEPS)


def simulating() -> bool:
    """Whether the server is to simulate."""
    return seam.there(seam.SIMULATED) and _spec_utils.SIMULATE_ACC_LEN > 0


class Simulated(Forwards):
    """Forwards whose target accepts as much as SGLang would simulate, the same for all requests of a step."""

    def __init__(self, worker: Any, attention: Attention, parts: Parts, shape: Any) -> None:
        """As `Forwards`. ServerError where `SPECC_SIMULATE_ACC_LENS` cannot be read."""
        super().__init__(worker, attention, parts, shape)
        most = shape.num_steps + 1
        random.seed(0)
        how = _spec_utils.SIMULATE_ACC_LEN, _spec_utils.SIMULATE_ACC_METHOD
        mean = accepted_by_shape().get(str(shape))
        drawn = drawn_lengths(mean, most) if mean is not None else [_sample_length(*how, most) for _ in range(STEPS)]
        device = worker.req_to_token_pool.req_to_token.device
        self._accepted = torch.tensor(drawn, dtype=torch.int64, device=device)
        self._turn = torch.zeros(1, dtype=torch.int64, device=device)
        self._depths = torch.arange(most + 1, device=device)
        self._highest = torch.tensor(HIGHEST, device=device)  # a number of the host's could not be captured

    def target(self, **call: Unpack[TargetCall]) -> ForwardOutputs:
        """See `Forwards`."""
        tokens, seq_lens = call["tokens"], call["seq_lens"]
        depth = call["positions"] - seq_lens[:, None]  # before models that add 1 to positions in place (Gemma)
        output = super().target(**call)
        length = self._accepted[self._turn % STEPS]
        self._turn += 1
        sees = seen(call["slots"], seq_lens, call.get("mask"), call.get("counts"))
        cols = self._path(length - 1, depth, sees)
        follows = self._depths[:-2] < length - 1
        ends = _undrafted(tokens)
        wanted = torch.where(follows, tokens.gather(1, cols[:, 1:]), ends)
        wanted = torch.cat((wanted, ends), dim=1)
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        assert output.logits is not None  # of the target
        output.logits.index_put_((rows, cols, wanted), self._highest)
        return output

    def target_rows(self, **call: Unpack[TargetRowsCall]) -> ForwardOutputs:
        """See `Forwards`: of a path as much is accepted as has rows."""
        tokens, lens, starts = call["tokens"].flatten(), call["lens"][:, None], call["starts"][:, None]
        output = super().target_rows(**call)
        length = self._accepted[self._turn % STEPS]
        self._turn += 1
        cols = self._depths[:-1]
        there = cols < lens
        place = torch.where(there, starts + cols, 0)
        drafted = torch.where(there, tokens[place], -1)
        ends = _undrafted(drafted)
        follows = (cols[:-1] < length - 1) & there[:, 1:]
        wanted = torch.cat((torch.where(follows, drafted[:, 1:], ends), ends), dim=1)
        assert output.logits is not None  # of the target
        chosen = output.logits.flatten(0, 1)  # rows that are nobody's are left as they are
        chosen.index_put_((place, wanted), torch.where(there, self._highest, 0.0), accumulate=True)
        return output

    def _path(self, last: Tensor, depth: Tensor, sees: Tensor) -> Tensor:
        """Columns i64[b, A] of a path to the first node of depth `last` i64[1], that node again and again behind it.

        In a tree that is less deep, which drafts make that say everything is as likely, to the first of the deepest.
        depth i64[b, N]; sees bool[b, N, N], row node, column itself and its ancestors.
        """
        nodes = depth.shape[1]
        columns = torch.arange(nodes, device=depth.device).expand_as(depth)
        deepest = torch.where(depth <= last, depth, 0).amax(1, keepdim=True)
        leaf = torch.where(depth == deepest, columns, nodes).amin(1, keepdim=True)
        on_path = sees.gather(1, leaf[:, :, None].expand(-1, 1, sees.shape[2]))[:, 0]
        most = len(self._depths) - 1
        path = leaf.repeat(1, most + 1)
        return path.scatter(1, torch.where(on_path, depth, most), columns)[:, :most]


def _undrafted(tokens: Tensor) -> Tensor:
    """The first token i64[b, 1] from `TOKEN` on that no node i64[b, N] drafts. Look-ups find `TOKEN` in texts."""
    others = TOKEN + torch.arange(tokens.shape[1], device=tokens.device)
    drafted = (tokens[:, 1:, None] == others).any(1)
    return TOKEN + drafted.int().argmin(1, keepdim=True)
