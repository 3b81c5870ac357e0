"""Recurrent states that stay where their nodes left them: a program carries which of a row's snapshots is its state.

A program with `state_form: point` copies none. So the snapshots of a pool row outlive the step, one more than there are
nodes: a verification goes on from the one that is its request's state, and leaves what its nodes make in the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from specc.lab.engine.memory.state_pool import PartShape, RowStates, StatePool, over
from specc.runtime.semantics.state_forms import snapshots


class SnapshotStates(StatePool):
    """The snapshots of all pool rows: `parts` holds T[P, N + 1, ...] of each tensor.

    `points` i32[P] says which one is the state of a row; once a program is bound, that is what the program carries.
    """

    def __init__(self, shapes: Sequence[PartShape], rows: int, nodes: int, device: torch.device | str = "cpu") -> None:
        """Allocate `rows` pool rows (P), for so many nodes at most."""
        super().__init__([PartShape(s.part, (nodes + 1, *s.size), s.dtype) for s in shapes], rows, device)
        self.points = torch.zeros(rows, dtype=torch.int32, device=device)

    def make_room(self, requests: int, nodes: int) -> None:
        """Nothing: there is room for the nodes of all pool rows."""

    @property
    def bound(self) -> Sequence[tuple[Tensor, ...]]:
        """Each tensor of snapshots, by layers."""
        return [(tensor,) for tensor in self.tensors]

    def of_row(self, row: int) -> list[Tensor]:
        """The state of a pool row, by layers: one of its snapshots, which the device is asked for."""
        return [tensor[row, int(self.points[row])] for tensor in self.tensors]

    def first_of_row(self, row: int) -> list[Tensor]:
        """Where a state that comes from elsewhere goes, by layers: as behind a prefill."""
        return [tensor[row, 0] for tensor in self.tensors]

    def keep(self, rows: Tensor, left: RowStates) -> None:
        """Store what a prefill has left of pool rows i64[b]."""
        tensors = left.tensors()
        for part, states in self.parts.items():
            states.index_put_((rows, torch.zeros_like(rows)), tensors[part])

    def runs(
        self, rows: Tensor, parents: Tensor, order: Tensor, points: Tensor | None = None
    ) -> Iterator[tuple[Tensor, RowStates]]:
        """As of `StatePool.runs`, from the snapshots `points` i32[b]; what nodes make goes to the others."""
        assert points is not None
        row, columns = torch.arange(len(rows), device=rows.device), torch.arange(parents.shape[1], device=rows.device)
        places = snapshots(points, columns.expand(parents.shape))
        for node in order.unbind(1):
            parent, at = parents[row, node], places[row, node]
            begin = torch.where(parent >= 0, places[row, parent.clamp(min=0)], points)
            left = RowStates({part: states[rows, begin] for part, states in self.parts.items()})
            yield node, left
            for part, tensor in left.tensors().items():
                states = self.parts[part]
                states[rows, at] = torch.where(over(rows != 0, tensor), tensor, states[rows, at])
