"""Recurrent states that stay where nodes leave them: those of transformers, whatever was accepted."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor

from specc.lab.engine.memory.state_pool import CONV, RECURRENT, PartShape, RowStates, StatePart, StatePool
from specc.lab.engine.memory.state_snapshots import SnapshotStates
from specc.lab.engine.models.causal_models import TargetModel
from specc.runtime.plan.recurrent.state_tables import POINT
from specc.runtime.semantics.reference import evaluate

from .test_states import NODES, Steps, each_family, follow, hybrid, many_steps

torch.set_num_threads(1)


class PointedSteps(Steps):
    """Steps of a program that says which snapshot is a request's state."""

    states: SnapshotStates

    def pool(self, target: TargetModel, rows: int) -> StatePool:
        """The snapshots of so many pool rows; one more than is needed."""
        return SnapshotStates(target.facts.states, rows, NODES + 1)

    def told(self, rows: Tensor) -> dict[str, Tensor]:
        """Where the states of pool rows are."""
        return {"points": self.states.points[rows]}

    def kept(self) -> dict[StatePart, Tensor]:
        """The snapshots that are the states of all pool rows."""
        return {part: t[torch.arange(len(t)), self.states.points] for part, t in self.states.parts.items()}

    def commit(self, order: list[int], accepted: list[list[int]]) -> None:
        """Say where the state of every row is; all other snapshots are no numbers any more."""
        most = max(1, *map(len, accepted))
        numbers = [[b * NODES + node for node in path] + [-1] * (most - len(path)) for b, path in enumerate(accepted)]
        rows, lens = torch.tensor(order), torch.tensor([len(path) for path in accepted], dtype=torch.int32)
        given = self.states.points[rows], torch.tensor(numbers, dtype=torch.int32), lens
        (points,) = evaluate(POINT, given, {"nodes": NODES}, {}, {})
        self.states.points[rows[rows != 0]] = points[rows != 0]
        with torch.inference_mode():
            for states in self.states.tensors:
                others = torch.arange(states.shape[1])[None] != self.states.points[:, None]
                others[0] = False  # nobody's
                states[others] = torch.nan


@each_family
@pytest.mark.parametrize("mode", [None, "qlen", "bitpacked"])
def test_states_are_those_of_the_accepted_tokens(family: str, mode: str | None) -> None:
    """Over steps of chains and random trees, for rows in any order, with padding."""
    follow(PointedSteps(hybrid(family), mode, seed=7), Random(f"{family} {mode}"))


@each_family
def test_many_steps(family: str) -> None:
    many_steps(lambda mode, seed: PointedSteps(hybrid(family), mode, seed))


def pool() -> SnapshotStates:
    """Two tensors of numbers, of three rows and windows of four nodes, all different."""
    states = SnapshotStates([PartShape(StatePart(0, 0, kind), (2,), torch.float32) for kind in (CONV, RECURRENT)], 3, 4)
    for number, tensor in enumerate(states.tensors):
        tensor.copy_(torch.arange(30.0).view(3, 5, 2) + 100 * number)
    return states


def test_a_row_gives_its_state_and_takes_another_one_where_a_prefill_leaves_it() -> None:
    states, other = pool(), pool()
    states.points[1] = 3
    taken = [state.clone() for state in states.of_row(1)]
    assert [state.tolist() for state in taken] == [[16.0, 17.0], [116.0, 117.0]]
    for place, state in zip(other.first_of_row(2), taken, strict=True):
        place.copy_(state)
    assert [tensor[2, 0].tolist() for tensor in other.tensors] == [[16.0, 17.0], [116.0, 117.0]]
    states.clear(1)
    assert not any(tensor[1].any() for tensor in states.tensors)


def test_padding_writes_nothing() -> None:
    states = pool()
    before = [tensor.clone() for tensor in states.tensors]
    rows, order = torch.tensor([0, 2, 0]), torch.arange(4).expand(3, 4)
    for _, left in states.runs(rows, order - 1, order, torch.tensor([0, 2, 3], dtype=torch.int32)):
        for tensor in left.tensors().values():
            tensor.fill_(-1)
        assert isinstance(left, RowStates)
    for old, new in zip(before, states.tensors, strict=True):
        assert torch.equal(old[:2], new[:2])
        assert torch.equal(old[2, 2], new[2, 2])
        assert [bool((new[2, place] == -1).all()) for place in (0, 1, 3, 4)] == [True] * 4
