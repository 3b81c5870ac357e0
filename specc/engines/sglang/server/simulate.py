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
import triton
import triton.language as tl
from torch import Tensor

from ..._plugin import ServerError
from .. import seam
from ..attention.step import Attention
from ..masks import seen
from ..models.forwards import ForwardOutputs, Forwards
from ..parts.parts import Parts

if TYPE_CHECKING:
    from specc.runtime.entry.callbacks import TargetCall, TargetRowsCall

TOKEN = tl.constexpr(100)
"""What the target says after the accepted path, as in SGLang, or where that is drafted a token behind it."""
HIGHEST = tl.constexpr(1e30)
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


@triton.jit
def say_path(
    logits_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    lens_ptr: tl.tensor,
    depth_ptr: tl.tensor,
    sees_ptr: tl.tensor,
    length_ptr: tl.tensor,
    turn_ptr: tl.tensor,
    nodes: tl.tensor,
    row_stride: tl.tensor,
    columns: tl.tensor,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Have the target say a path and a token that nobody drafted, as many in all as `length` i64[STEPS] has this turn.

    A request has `nodes` rows of tokens i64[R] and logits [R, columns], or with `lens` i32[b] so many from `starts` on.
    They are a chain, or with `sees` bool[b, nodes, nodes], which are its ancestors and itself, a tree of `depth`
    i64[b, nodes]. The path ends in the first node of the wanted depth, or in the first of the deepest where none is so
    deep. Tokens that are looked up may be `TOKEN`, so the one behind it is the next that no node drafts.
    """
    b, node = tl.program_id(0), tl.arange(0, BLOCK)
    start, count = b * nodes, nodes
    if lens_ptr is not None:
        start, count = tl.load(starts_ptr + b), tl.load(lens_ptr + b)
    there = node < count
    token = tl.load(tokens_ptr + start + node, mask=there, other=-1)
    depth = node.to(tl.int64)
    if sees_ptr is not None:
        depth = tl.load(depth_ptr + start + node, mask=there, other=BLOCK)
    last = tl.load(length_ptr + tl.load(turn_ptr) % STEPS) - 1
    deepest = tl.max(tl.where(there & (depth <= last), depth, 0), 0)
    leaf = tl.min(tl.where(there & (depth == deepest), node, BLOCK), 0)
    path = there & (depth <= deepest)
    if sees_ptr is not None:
        path = path & (tl.load(sees_ptr + (start + leaf) * nodes + node, mask=there, other=0) != 0)
    follows = path[None, :] & (depth[None, :] == depth[:, None] + 1)
    follower = tl.sum(tl.where(follows, token[None, :], 0), 1)
    drafted = (token[None, :] == node[:, None] + TOKEN) & (node[None, :] > 0)
    undrafted = tl.min(tl.where(tl.max(drafted.to(tl.int32), 1) == 0, node, BLOCK), 0) + TOKEN
    said = tl.where(node == leaf, undrafted, follower)
    row = (start + node).to(tl.int64)
    tl.store(logits_ptr + row * row_stride + said, HIGHEST, mask=path & (said >= 0) & (said < columns))


class Simulated(Forwards):
    """Forwards whose target accepts as much as SGLang would simulate, the same for all requests of a step."""

    def __init__(self, worker: Any, attention: Attention, parts: Parts, shape: Any) -> None:
        """As `Forwards`. ServerError where `SPECC_SIMULATE_ACC_LENS` cannot be read."""
        super().__init__(worker, attention, parts, shape)
        self._most = most = shape.num_steps + 1
        random.seed(0)
        how = _spec_utils.SIMULATE_ACC_LEN, _spec_utils.SIMULATE_ACC_METHOD
        mean = accepted_by_shape().get(str(shape))
        drawn = drawn_lengths(mean, most) if mean is not None else [_sample_length(*how, most) for _ in range(STEPS)]
        device = worker.req_to_token_pool.req_to_token.device
        self._accepted = torch.tensor(drawn, dtype=torch.int64, device=device)
        self._turn = torch.zeros(1, dtype=torch.int64, device=device)

    def target(self, **call: Unpack[TargetCall]) -> ForwardOutputs:
        """See `Forwards`."""
        mask, seq_lens, tree = call.get("mask"), call["seq_lens"], {}
        if mask is not None:  # depths before the forward: some models add 1 to positions in place (Gemma)
            sees = seen(call["slots"], seq_lens, mask, call.get("counts"))
            tree = {"depth": call["positions"] - seq_lens[:, None], "sees": sees.contiguous()}
        output = super().target(**call)
        return self._say(output, call["tokens"], call["tokens"].shape[1], **tree)

    def target_rows(self, **call: Unpack[TargetRowsCall]) -> ForwardOutputs:
        """See `Forwards`: of a path as much is accepted as has rows."""
        output = super().target_rows(**call)
        return self._say(output, call["tokens"], self._most, call["starts"], call["lens"])

    def _say(
        self,
        output: ForwardOutputs,
        tokens: Tensor,
        nodes: int,
        starts: Tensor | None = None,
        lens: Tensor | None = None,
        depth: Tensor | None = None,
        sees: Tensor | None = None,
    ) -> ForwardOutputs:
        """The output, in which one launch has changed the scores. See `say_path`."""
        assert output.logits is not None  # of the target
        logits, requests = output.logits.flatten(0, 1), len(tokens) if lens is None else len(lens)
        launch: Any = say_path[(requests,)]
        by_row = tokens.contiguous(), starts, lens, depth, sees
        sizes = nodes, logits.stride(0), logits.shape[1], STEPS, triton.next_power_of_2(nodes)
        launch(logits, *by_row, self._accepted, self._turn, *sizes)
        self._turn += 1
        return output
