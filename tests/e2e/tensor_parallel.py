"""Tensor parallel in the reference engine: several ranks serve the same requests, each with its columns of the logits.

Every rank computes all scores, by the same products of the same sizes, so that they are equal to the last bit on any
number of ranks. It shows that nothing depends on that number, and saves no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import wraps
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from specc.compiler.ir.types import SHARDS
from specc.lab.engine.data_parallel import LockStep, Round
from specc.lab.engine.errors import LockStepError
from specc.lab.engine.serving.requests.request import Request
from specc.runtime import Collective
from specc.runtime.plan.nodes import External
from specc.runtime.plan.plan import RANK, Plan

_WORDS = {
    "prefill": "the rows to prefill",
    "decode": "the rows to decode",
    "num_steps": "the draft steps",
    "working": "whether there is work",
}


class SameStep(LockStep):
    """One rank's engine, which launches what all others launch, of the same requests in the same rows.

    Whoever adds or aborts a request does so on every rank, between the same two steps. A round in which ranks differ
    launches nothing: each of them raises LockStepError that says in what.
    """

    def _agree(self, mine: Round, fresh: Sequence[Request], due: Sequence[Request]) -> Round:
        """See `LockStep`; the numbers must be the same on all ranks, and the requests, which are compared by a sum."""
        numbers = (*mine, crc32(repr([_of(request) for request in (*fresh, *due)]).encode()))
        try:
            with self._or_over():
                extremes = self.peers.largest([*numbers, *(-number for number in numbers)])
                most, least = extremes[: len(numbers)], [-number for number in extremes[len(numbers) :]]
                agreed = Round(*most[:-1])
                if agreed.leaving:
                    raise LockStepError(f"rank {agreed.leaving - 1} has left")
                for name, low, high in zip(Round._fields, least, most, strict=False):
                    if low != high:
                        raise LockStepError(f"the ranks disagree about the step: {_WORDS[name]}: {low} and {high}")
                if least[-1] != most[-1]:
                    raise LockStepError("the ranks disagree about the step: its requests, their rows or their tokens")
        except BaseException:
            self.engine.scheduler.expel(fresh)
            raise
        return agreed


def _of(request: Request) -> tuple[object, ...]:
    """What must be the same of a request on all ranks."""
    return request.request_id, request.row, request.stay, request.sampling, request.ids


def of_rank(program: Any, collective: Collective) -> Any:
    """A program with sharded logits as the engine runs it: forwards of whole logits, of which it gets a rank's columns.

    Columns of no token hold NaN, which the program never looks at.
    """
    ranked, plan = copy(program), program.plan
    ranked.plan = replace(plan, inputs={name: spec for name, spec in plan.inputs.items() if name != RANK})

    def bind(callbacks: Any, table: Tensor, **given: Any) -> Any:
        axes = {node.callback: _axis(plan, node) for node in plan.externals()}
        for name, axis in axes.items():
            if axis in SHARDS.values():
                whole = getattr(callbacks, name)
                setattr(callbacks, name, _sharded(whole, plan.size(axis), plan.ranks, collective.rank))
        return program.bind(callbacks, table, collective=collective, **given)

    ranked.bind = bind
    return ranked


def _axis(plan: Plan, node: External) -> str:
    """The axis of what a forward scores; empty where it scores nothing."""
    logits = node.results.get("logits")
    return plan.values[logits].axes[-1] if logits is not None else ""


def _sharded(forward: Callable[..., Any], width: int, ranks: int, rank: int) -> Callable[..., Any]:
    """A forward that returns the columns of a rank."""

    @wraps(forward)
    def call(**operands: Any) -> Any:
        answer = forward(**operands)
        return replace(answer, logits=_columns(answer.logits, width, ranks, rank))

    return call


def _columns(logits: Tensor, width: int, ranks: int, rank: int) -> Tensor:
    padding = width * ranks - logits.shape[-1]
    whole = torch.nn.functional.pad(logits, (0, padding), value=torch.nan) if padding else logits
    return whole[..., rank * width : (rank + 1) * width].contiguous()
