"""Ranks agree before a decode step where attention is data parallel: whose it is, and how many rows it has.

Each rank has requests of its own, and the forwards of all exchange data. So all run the same steps, and a rank without
requests runs them on rows of padding. Before each forward SGLang's schedulers gather some numbers of every rank's batch
(`MLPSyncBatchInfo`), among them how many requests it has. Here they gather one more: whether the program of the rank
would serve its batch. A step is the program's where all of them would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.managers.scheduler_components.dp_attn import MLPSyncBatchInfo
from torch import Tensor

OTHERS = "requests of another rank"
"""Why a rank leaves a step to SGLang that its own program would have served."""


class LockStep:
    """The agreement of this rank with the others.

    Args:
        serves: whether the program would serve a batch of SGLang's, which is None where there is none.

    Attributes:
        rows: requests of the rank that has most of them in the step that comes next; 0 where it is no program's.

    """

    current: LockStep | None = None
    """That of this process, where attention is data parallel and a program runs."""

    def __init__(self, serves: Callable[[Any], bool]) -> None:
        """Nothing is agreed on."""
        self._serves, self._vote, self.rows = serves, False, 0

    def vote(self, batch: Any) -> None:
        """Before numbers are gathered: say of this rank's batch whether the program serves it."""
        self._vote, self.rows = self._serves(batch), 0

    def with_vote(self, numbers: Tensor) -> Tensor:
        """The numbers i64[n] of this rank's batch, and its vote behind them."""
        return torch.cat((numbers, numbers.new_tensor([self._vote])))

    def count(self, votes: Tensor, requests: int) -> None:
        """Behind the gather: `votes` i64[ranks], and how many requests the rank has that has most of them."""
        self.rows = requests if bool(votes.all()) else 0


class VotedSyncBatchInfo(MLPSyncBatchInfo):
    """The numbers that SGLang gathers, and a vote: the last column."""

    def _get_local_tensor(self, *given: Any, **named: Any) -> Tensor:
        numbers = super()._get_local_tensor(*given, **named)
        return numbers if LockStep.current is None else LockStep.current.with_vote(numbers)

    def _get_fallback_tensor(self, *given: Any, **named: Any) -> Tensor:
        """A rank that is not there has nothing against a step."""
        numbers = super()._get_fallback_tensor(*given, **named)
        return numbers if LockStep.current is None else torch.cat((numbers, numbers.new_ones(1)))

    def all_gather(self, *given: Any, **named: Any) -> None:
        """Gather, and count."""
        super().all_gather(*given, **named)
        if LockStep.current is not None:
            requests = 0 if self.is_extend_in_batch else max(self.global_num_tokens)
            LockStep.current.count(self.tp0_info_cpu[:, -1], requests)


def vote(_: Any, local_batch: Any) -> None:
    """Before SGLang's `prepare_mlp_sync_batch`: it gathers, if ranks are several."""
    if LockStep.current is not None:
        LockStep.current.vote(local_batch)
