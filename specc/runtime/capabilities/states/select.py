"""States that a program copies: beside T[rows, ...] stands T[requests, N, ...], the state of each node.

Windows of a convolution may overlap there, as SGLang has those of chains: what a node adds lies behind what the node
before has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ...bound import BoundStep
from ...memory.kv_rows import KvRows, Parts
from ...memory.state_pools import Part, StatePools, rows_fault
from ...plan.recurrent.state_tables import SELECT, TABLE_SIZES, CommittedStates

WIDE, NARROW = 16, 2
"""Bytes that divide all places of a state which is copied as one piece, and of any other."""


class SelectedStates(StatePools):
    """States of any size, in as many tensors as a layer has."""

    @property
    def _wanted(self) -> str:
        return f"pairs of tensors, as many of each of {self._pool.layers} layers, {self._most} at most"

    @property
    def _most(self) -> int:
        return TABLE_SIZES[self._pool.op][0]

    def _counts(self, count: int) -> bool:
        return count <= self._pool.layers * self._most

    def _members(self, number: int) -> tuple[str, ...]:
        return "what is kept", "what is pending"

    def _fault(self, number: int, part: Part, first: Part) -> str:
        kept, pending = part
        if kept.dim() < 2 or not kept.numel() or pending.shape[2:] != kept.shape[1:] or kept.dtype != pending.dtype:
            shapes = f"{kept.dtype}{list(kept.shape)} and {pending.dtype}{list(pending.shape)}"
            return f"has {shapes}, expected [rows, ...] and [requests, N, ...] of one dtype"
        if fault := self._room_fault(pending) or rows_fault(kept, first[0]):
            return fault
        if (pieces := _pieces(pending)) is None:
            return f"has strides {list(pending.stride())}, expected pieces of a state to be equally far apart"
        if any(place % NARROW for place in (*_places(kept, pending), *pieces)):
            return f"has an address or a distance that {NARROW} does not divide"
        return ""

    def _row(self, number: int, part: Part) -> list[int]:
        """See `copy_state`."""
        kept, pending = part
        places, (piece, apart) = _places(kept, pending), _pieces(pending) or (0, 0)
        whole = piece == places[-1] and not any(place % WIDE for place in places)
        return [*places, 0 if whole else piece, apart]


def _pieces(pending: Tensor) -> tuple[int, int] | None:
    """Bytes of what lies together of a node's state, and from one of these to the next; None if they are not alike."""
    runs: list[tuple[int, int]] = []  # sizes and strides of axes, the innermost first, those joined that can be
    for size, step in zip(reversed(pending.shape[2:]), reversed(pending.stride()[2:]), strict=True):
        if runs and step == runs[-1][0] * runs[-1][1]:
            runs[-1] = runs[-1][0] * size, runs[-1][1]
        elif size > 1:
            runs.append((size, step))
    together = runs.pop(0)[0] if runs and runs[0][1] == 1 else 1
    if len(runs) > 1:
        return None
    element = pending.element_size()
    return together * element, (runs[0][1] if runs else together) * element


def _places(kept: Tensor, pending: Tensor) -> tuple[int, ...]:
    """Both addresses, the distances of state rows, of requests and of nodes, and the size of a state, in bytes."""
    size = kept.element_size()
    steps = (step * size for step in (kept.stride(0), *pending.stride()[:2]))
    return kept.data_ptr(), pending.data_ptr(), *steps, kept[0].numel() * size


class SelectingStep(BoundStep):
    """A step that copies the state of the accepted node."""

    def _moved(self, kv_pools: Mapping[str, Sequence[Tensor]], state_pools: Parts) -> KvRows:
        """The KV buffers, and the states beside them. BindError unless they fit."""
        pool = CommittedStates.of(self._plan)
        if pool is None or pool.op != SELECT:
            return super()._moved(kv_pools, state_pools)
        return SelectedStates(self._plan, pool, self._device, state_pools, super()._moved(kv_pools, {}))
