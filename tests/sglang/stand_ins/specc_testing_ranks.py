"""What ranks exchange by NCCL alone, on a CPU by gloo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

GROUP = "sglang.srt.distributed.parallel_state.GroupCoordinator"


def exchange() -> None:
    """Let ranks of a CPU gather into stacked tensors, and keep their own rows of a sum."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{GROUP}._all_gather_into_tensor", gather, HookType.AROUND)
    HookRegistry.register(f"{GROUP}.reduce_scatterv", scatter, HookType.AROUND)


def gather(original: Callable[..., None], group: Any, output: Tensor, given: Tensor) -> None:
    """Gather [n, ...] of every rank into [ranks, n, ...] or [ranks n, ...]: gloo knows the second."""
    original(group, output.flatten(0, 1) if output.dim() > given.dim() else output, given)


def scatter(
    _: Callable[..., Tensor],
    group: Any,
    given: Tensor,
    output: Tensor | None = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """Return of the sum of all ranks' rows those of this rank, of which every rank has as many or `sizes`."""
    summed = given.clone()
    torch.distributed.all_reduce(summed, group=group.device_group)
    rows = summed.split([*sizes] if sizes else len(given) // group.world_size)[group.rank_in_group]
    return rows if output is None else output.copy_(rows)
