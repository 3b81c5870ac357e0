"""Logits that stay with their ranks: forwards of a program leave out SGLang's gather, and its records are gathered.

Each rank scores its part of the vocabulary, since SGLang shards heads. In its own forwards the logits processor of a
model then gathers whole rows; `do_tensor_parallel_all_gather` says so, and is taken back for one forward at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

AXES = {"target": "Vs", "draft": "Vds"}
"""A model -> the axis of plans that is the columns a rank has of its logits."""
GATHERS = "do_tensor_parallel_all_gather"
"""What a logits processor of SGLang is told to gather by."""


def columns(plan: Any) -> dict[str, int]:
    """How many columns of logits a rank has of each model whose forwards hand such over."""
    given = {role: axis for role, axis in AXES.items() if role == "target" or not plan.computes_head}
    return {role: plan.dims[axis] for role, axis in given.items() if axis in plan.dims}


class Ranks:
    """SGLang's ranks as the collective of a program, see `Collective` of its runtime.

    Args:
        group: the `GroupCoordinator` of tensor parallelism. It gathers by gloo on a CPU; on CUDA by torch's NCCL, and
            inside SGLang's `graph_capture` by its own, which can be captured.

    """

    def __init__(self, group: Any) -> None:
        """Ranks are numbered as the group has them, which is how SGLang shards heads."""
        self._group = group
        self.rank, self.size = int(group.rank_in_group), int(group.world_size)

    def all_gather(self, out: Tensor, record: Tensor) -> None:
        """Write the records i64[1, ...] of all ranks, by rank, into out i64[size, ...]."""
        self._group.all_gather_into_tensor(out.view(-1), record.view(-1))


class Shards:
    """What of a program's logits a rank's forwards hand over.

    Args:
        plan: the program's.
        runners: the model runners of `target` and `draft`.

    """

    def __init__(self, plan: Any, runners: Mapping[str, Any]) -> None:
        """Find what gathers in each model."""
        self._columns = {runners[role]: count for role, count in columns(plan).items()}
        self._gathering = {runner: _gathering(runner.model) for runner in self._columns}

    def columns(self, runner: Any) -> int | None:
        """How many columns a forward hands over; None for whole rows."""
        return self._columns.get(runner)

    @contextlib.contextmanager
    def kept(self, runner: Any) -> Iterator[None]:
        """While a forward of a program runs: leave each rank its own columns.

        Before and behind it the processors are as SGLang has made them, for forwards of its own.
        """
        gathering = self._gathering.get(runner, [])
        for processor in gathering:
            setattr(processor, GATHERS, False)
        try:
            yield
        finally:
            for processor in gathering:
                setattr(processor, GATHERS, True)


def misfits(plan: Any, runners: Mapping[str, Any], ranks: int) -> Iterator[str]:
    """What is in the way of sharded logits on so many ranks, of a program that has them or makes them by a head."""
    parts = columns(plan)
    if (parts or plan.computes_head) and plan.ranks != ranks:
        yield f"tensor_parallel is {plan.ranks} in the program, tp_size is {ranks} in the server"
        return
    for role, own in parts.items():
        yield from _head(role, runners[role], own, ranks)


def _head(role: str, runner: Any, own: int, ranks: int) -> Iterator[str]:
    """What of one model is in the way, whose ranks have `own` columns each in the program."""
    tokens: int = runner.model_config.vocab_size  # of the target, whatever a head scores: what is behind is cut off
    head: Any = getattr(runner.model, "lm_head", None)
    processors = [module for module in runner.model.modules() if hasattr(module, GATHERS)]
    if getattr(head, "tp_size", None) != ranks or head.num_added_embeddings:
        yield f"the head of the {role} is not a part of the vocabulary on each rank"
        return
    if ranks > 1 and (len(processors) != 1 or not _gathering(runner.model) or processors[0].use_attn_tp_group):
        yield f"the logits of the {role} are not gathered by one logits processor, over all ranks"
        return
    padded = head.num_embeddings_padded if ranks > 1 else min(head.num_embeddings_padded, tokens)
    if own * ranks != padded:
        yield f"padded_vocab_size of the {role} is {own * ranks} in the program, {padded} in the server"
    elif own > tokens:
        yield f"a rank has {own} columns of the {role}, more than its {tokens} tokens: SGLang cuts them off"


def _gathering(model: Any) -> list[Any]:
    """The logits processors of a model that gather."""
    return [module for module in model.modules() if getattr(module, GATHERS, False)]
