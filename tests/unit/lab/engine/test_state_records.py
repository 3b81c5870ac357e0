"""Recurrent states by what nodes add to them: those of transformers, whatever was accepted, of every kind of layer."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pytest
import torch
from programs import planned
from random_hybrids import HYBRIDS, STATES

from specc.lab.engine.errors import UnsupportedModelError
from specc.lab.engine.memory.state_pool import CONV, RECURRENT, StatePool
from specc.lab.engine.memory.state_records import RecordedStates, noting
from specc.lab.engine.models.causal_models import TargetModel
from specc.runtime.plan.recurrent.state_tables import FOLD, CommittedStates
from specc.runtime.semantics.reference import evaluate

from .models_for_tests import make_target
from .test_states import FEW, MANY, NODES, Steps, follow, many_steps

torch.set_num_threads(1)
ROWS = 6
KIMI: dict[str, Any] = {
    "num_key_value_heads": 4,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
MODELS = {**HYBRIDS, "kimi_linear": KIMI}
KINDS = {**STATES, "kimi_linear": {"kind": "KDA", "heads": 4, "rows": 8, "columns": 8, "groups": 4, "kernel": 4}}
each_family = pytest.mark.parametrize("family", MODELS)


def model_of(family: str) -> TargetModel:
    """A random target of two layers of attention and two with a state."""
    return make_target(family, layers=4, **MODELS[family])


def folded(family: str, **other: Any) -> CommittedStates:
    """What a program says of the states that it advances."""
    state = {"state_layers": 2, "state_form": "fold", "state": KINDS[family] | other, "dtype": "float32"}
    (plan,) = planned("EAGLE", num_steps=NODES - 1, target=state)
    pool = CommittedStates.of(plan)
    assert pool is not None
    return pool


class FoldedSteps(Steps):
    """Steps whose states a program advances; nodes leave nothing but records."""

    def __init__(self, target: TargetModel, mode: str | None, seed: int, family: str) -> None:
        """As of snapshots."""
        self.folded = folded(family)
        super().__init__(target, mode, seed)

    def pool(self, target: TargetModel, rows: int) -> StatePool:
        """The states of so many pool rows."""
        return RecordedStates(target.facts.states, rows, target.model, self.folded)

    def commit(self, order: list[int], accepted: list[list[int]]) -> None:
        """Advance the state of every row along its path; records of other nodes are no numbers any more."""
        most = max(1, *map(len, accepted))
        numbers = [[b * NODES + node for node in path] + [-1] * (most - len(path)) for b, path in enumerate(accepted)]
        tensors = [tensor for part in self.states.bound for tensor in part]
        with torch.inference_mode():
            for _, *records in self.states.bound:
                for record in records:
                    for b, path in enumerate(accepted):
                        record[b, [node for node in range(NODES) if node not in path]] = torch.nan
        rows, lens = torch.tensor(order), torch.tensor([len(path) for path in accepted], dtype=torch.int32)
        tables = torch.arange(ROWS, dtype=torch.int32), torch.full((ROWS,), -1, dtype=torch.int32), torch.tensor([0])
        given = (torch.tensor(numbers, dtype=torch.int32), lens, rows, torch.zeros_like(rows), *tables)
        with torch.inference_mode():
            evaluate(FOLD, given, {}, {"N": NODES, "A": most}, {}, {"target.state": tensors})


@each_family
@pytest.mark.parametrize("mode", [None, "qlen", "slots"])
def test_states_are_those_of_the_accepted_tokens(family: str, mode: str | None) -> None:
    """Over steps of chains and random trees, in any order, with padding, as of snapshots."""
    follow(FoldedSteps(model_of(family), mode, 5, family), Random(f"{family} {mode}"))


@each_family
def test_many_steps(family: str) -> None:
    least = FEW if family == "kimi_linear" else MANY
    many_steps(lambda mode, seed: FoldedSteps(model_of(family), mode, seed, family), least)


@each_family
def test_nodes_leave_no_states(family: str) -> None:
    """What they leave is as large as a program says, and states lie as it reads them."""
    pool, target = folded(family), model_of(family)
    states = RecordedStates(target.facts.states, 3, target.model, pool)
    states.make_room(2, NODES)
    assert len(states.bound) == 4
    for part, (kept, *records) in zip([*pool.parts] * 2, states.bound, strict=True):
        assert tuple(kept.shape[1:-1]) == part.shape[:-1]
        assert kept[0].is_contiguous()
        assert [tuple(record.shape) for record in records] == [(2, NODES, *known.shape) for known in part.records]
    for kept in states.tensors:
        kept.fill_(7)
    states.clear(1)
    assert [bool(kept[1].any()) for kept, *_ in states.bound] == [False] * 4


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"heads": 8}, rf"the {RECURRENT} state of layer 0 is torch.float32\[4, 8, 8\], .* for .*\[8, 8, 8\]"),
    "dtype": ({"dtype": "bfloat16"}, "the program was built for torch.bfloat16"),
    "channels": ({"groups": 1}, rf"the {CONV} state of layer 0 is torch.float32\[64\], .* for torch.float32\[48\]"),
    "taps": ({"kernel": 6}, "layer 0 keeps 4 inputs, the program moves 5 or more"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_other_states_than_the_program_advances_are_refused(fault: str) -> None:
    other, message = FAULTS[fault]
    target = model_of("qwen3_next")
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        RecordedStates(target.facts.states, 3, target.model, folded("qwen3_next", **other))
    assert caught.value.hint == "rebuild with the sizes of this model as `state` of the target"
    with pytest.raises(UnsupportedModelError, match="advances the states of 2 layers, 1 of the target keep"):
        RecordedStates(target.facts.states[:2], 3, target.model, folded("qwen3_next"))


def test_models_that_nothing_is_known_of_are_refused() -> None:
    target = make_target("lfm2", layers=2, layer_types=["conv", "full_attention"])
    with pytest.raises(UnsupportedModelError, match="nothing is known of what tokens add") as caught:
        RecordedStates(target.facts.states, 3, target.model, folded("qwen3_next"))
    assert "`state_form: select`" in str(caught.value.hint)


def test_a_forward_that_fails_leaves_transformers_as_it_was() -> None:
    target = model_of("bamba")
    functions = vars(sys.modules[type(target.model).__module__])
    before = functions["mamba2_selective_state_update"]

    def fail() -> None:
        with noting(target.model):
            assert functions["mamba2_selective_state_update"] is not before
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert functions["mamba2_selective_state_update"] is before
