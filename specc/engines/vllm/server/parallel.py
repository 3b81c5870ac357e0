"""Ranks of a server with tensor parallelism compare what they are about to run, and capture together.

vLLM sends every step of its scheduler's to all ranks. Each gets whole rows of logits, and draws the same seeds. So each
runs the same program, and nothing of a step is sent, as long as no rank decides anything by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from vllm.distributed.parallel_state import get_tp_group, graph_capture

from ..._ranks import difference

_Made = TypeVar("_Made")


def several() -> bool:
    """Whether there are others beside this rank."""
    return bool(get_tp_group().world_size > 1)


def is_first() -> bool:
    """Whether this rank tells of all: logs and metrics would have everything several times."""
    return bool(get_tp_group().rank_in_group == 0)


def disagreement(of_rank: Mapping[str, object]) -> str | None:
    """Return in words what ranks are about to do otherwise than each other, on all the same; None if nothing.

    All ranks call this at the same place. It is a collective of vLLM's group for the host, over what can be pickled.
    """
    if not several():
        return None
    group = get_tp_group()
    of_ranks: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(of_ranks, dict(of_rank), group=group.cpu_group)
    return difference(of_ranks)


def alike(make: Callable[[], _Made]) -> _Made:
    """What every rank makes, before it waits for what others have made; all of them call this.

    Where it fails on one, RuntimeError on the others.
    """
    try:
        made, failed = make(), None
    except Exception as error:
        made, failed = None, error
    reason = disagreement({"what fails while it is bound": failed and str(failed)})
    if failed is not None:
        raise failed
    if reason is not None:
        raise RuntimeError(reason)
    return cast("_Made", made)


def capturing(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Around captures whose forwards are those of several ranks: vLLM's own all-reduce is captured in there.

    Ranks tell each other on leaving where collectives of graphs have memory, so no rank leaves alone.
    """
    return graph_capture(device=device) if several() else contextlib.nullcontext()


class Ranks:
    """VLLM's ranks as the collective of a program whose head they share out, see `Collective` of its runtime."""

    def __init__(self) -> None:
        """Ranks are numbered as the group of tensor parallelism has them, which is how vLLM shards heads."""
        self._group = get_tp_group()
        self.rank, self.size = int(self._group.rank_in_group), int(self._group.world_size)

    def all_gather(self, out: Tensor, record: Tensor) -> None:
        """Write the records i64[1, ...] of all ranks, by rank, into out i64[size, ...].

        They are sent as numbers of 32 bits: on a CPU vLLM gathers no integers of 64.
        """
        gathered: Tensor = self._group.all_gather(record.contiguous().view(torch.float32), 0)
        out.copy_(gathered.view(torch.int64))
