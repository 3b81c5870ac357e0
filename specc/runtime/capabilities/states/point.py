"""States that stay where a verification leaves them: T[rows, snapshots, ...], of which a carried number says which one.

The program reads and writes none of it. Bound tensors are checked, so that a forward has room for all that it is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...bound import BoundStep
from ...memory.arena import Arena
from ...memory.kv_rows import KvRows, Parts
from ...memory.state_pools import Part, StatePools
from ...plan.fields import STATE_POINT
from ...plan.plan import Plan
from ...plan.recurrent.state_tables import POINT, CommittedStates
from ...state.carry import Carry


class PointedStates(StatePools):
    """Snapshots of any size, in as many tensors as a layer has, for so many pool rows."""

    def __init__(
        self, plan: Plan, pool: CommittedStates, device: torch.device, given: Parts, beside: KvRows, rows: int
    ) -> None:
        """As of `StatePools`; rows: those of the request table."""
        self._rows = rows
        super().__init__(plan, pool, device, given, beside)

    @property
    def _wanted(self) -> str:
        return f"one tensor or more, as many of each of {self._pool.layers} layers, each by itself"

    def _counts(self, count: int) -> bool:
        return True

    def _members(self, number: int) -> tuple[str, ...]:
        return ("snapshots [rows, N + 1, ...]",)

    def _fault(self, number: int, part: Part, first: Part) -> str:
        (states,) = part
        rows, room = self._rows, self._pool.nodes + 1
        if states.dim() < 3 or not states[0, 0].numel():
            return f"has {states.dtype}{list(states.shape)}, expected [rows, snapshots, ...]"
        if len(states) < rows or states.shape[1] < room:
            return f"has room for {list(states.shape[:2])} rows and snapshots, the program has {[rows, room]}"
        if not _apart(states):
            return f"has strides {list(states.stride())}, expected snapshots to be apart"
        return ""

    @property
    def named(self) -> dict[str, Tensor]:
        """Every tensor by its name for people; of a row all from its first number to its last."""
        return self._beside.named | {
            name: states.as_strided((len(states), 1 + _span(states[0])), (states.stride(0), 1))
            for name, states in self._each().items()
        }

    def _row(self, number: int, part: Part) -> list[int]:
        return []

    def write_pointers(self, arena: Arena) -> None:
        """Fill the tables of addresses, of which states have none: no launch touches them."""
        self._beside.write_pointers(arena)


def _span(tensor: Tensor) -> int:
    """Elements from the first of a tensor to its last."""
    return sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _apart(tensor: Tensor) -> bool:
    """Whether no two entries of a tensor have the same memory: along every axis one steps over all within."""
    reached = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and step <= reached:
            return False
        reached += (size - 1) * step
    return True


class PointingStep(BoundStep):
    """A step that says which of a verification's states is that of a request."""

    def _moved(self, kv_pools: Mapping[str, Sequence[Tensor]], state_pools: Parts) -> KvRows:
        """The KV buffers, and the states beside them. BindError unless they fit."""
        pool = CommittedStates.of(self._plan)
        if pool is None or pool.op != POINT:
            return super()._moved(kv_pools, state_pools)
        beside = super()._moved(kv_pools, {})
        return PointedStates(self._plan, pool, self._device, state_pools, beside, len(self._table))

    def write_carry(self, rows: Sequence[int] | Tensor, carry: Carry) -> None:
        """As `BoundStep.write_carry`; the state of each row is in snapshot 0 then, where the engine puts it."""
        super().write_carry(rows, carry)
        if STATE_POINT in self.pools:
            index = rows if isinstance(rows, Tensor) else torch.tensor(rows, dtype=torch.int64, device=self.device)
            self.pools[STATE_POINT][index] = 0
