"""How much device memory a bound step takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..plan.plan import Plan, kv_pointers
from .arena import Arena


@dataclass(frozen=True)
class Memory:
    """Bytes of device memory.

    Attributes:
        arena: everything the program allocates for itself.
        relay: of these the pool rows that carry state from step to step.
        scratch: of these what kernels use for themselves while they run; at other times it may hold values.
        graphs: by bucket, how much more memory torch has reserved while its graphs were captured. The largest bucket
            comes first and the others use the same memory. Empty without capture.

    """

    arena: int
    relay: int
    scratch: int
    graphs: Mapping[int, int]

    @staticmethod
    def of(plan: Plan, arena: Arena, graphs: Mapping[int, int]) -> Memory:
        """What the tensors of an arena take, and graphs."""
        relay = {f"relay.{field}" for field in plan.carry}
        homes = {home.name for name in (*plan.values, *plan.inputs) if (home := plan.home(name)) is not None}
        tables = {kv_pointers(owner) for pool in plan.kv_pools for owner in (pool, f"{pool}.state")}
        scratch = arena.buffers.keys() - relay - homes - tables
        return Memory(
            arena=arena.bytes.nbytes,
            relay=_covered([arena.buffer(name) for name in relay]),
            scratch=_covered([arena.buffer(name) for name in scratch]),
            graphs=dict(graphs),
        )


def _covered(tensors: Sequence[Tensor]) -> int:
    """Bytes that belong to at least one of the tensors, which are contiguous."""
    total = end = 0
    for low, high in sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors):
        total += max(high - max(low, end), 0)
        end = max(end, high)
    return total
