"""Forwards of one rank of several, for a program whose logits are sharded."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from specc.ir.types import SHARDS
from specc.runtime import Collective
from specc.runtime.plan.nodes import External
from specc.runtime.plan.plan import RANK, Plan


def of_rank(callbacks: Any, plan: Plan, collective: Collective | None) -> Any:
    """The callbacks as a program reads them: of one with sharded logits, forwards hand over the rank's columns alone.

    Every rank computes all scores, by the same products of the same sizes, so that they are equal to the last bit on
    any number of ranks; columns of no token hold NaN, which the program never looks at.
    """
    if RANK not in plan.inputs:
        return callbacks
    rank = collective.rank if collective is not None else 0
    axes = {node.callback: _axis(plan, node) for node in plan.externals()}
    for name, axis in axes.items():
        if axis in SHARDS.values():
            setattr(callbacks, name, _sharded(getattr(callbacks, name), plan.size(axis), plan.ranks, rank))
    return callbacks


def _axis(plan: Plan, node: External) -> str:
    """The axis of what a forward scores; empty where it scores nothing."""
    logits = node.results.get("logits")
    return plan.values[logits].axes[-1] if logits is not None else ""


def _sharded(forward: Callable[..., Any], width: int, ranks: int, rank: int) -> Callable[..., Any]:
    """A forward that returns the columns of a rank."""

    @wraps(forward)
    def call(**operands: Any) -> Any:
        answer = forward(**operands)
        return answer._replace(logits=_columns(answer.logits, width, ranks, rank))

    return call


def _columns(logits: Tensor, width: int, ranks: int, rank: int) -> Tensor:
    padding = width * ranks - logits.shape[-1]
    whole = torch.nn.functional.pad(logits, (0, padding), value=torch.nan) if padding else logits
    return whole[..., rank * width : (rank + 1) * width].contiguous()
