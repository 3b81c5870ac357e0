"""Calls of the host in a captured step: they cut it, nothing else does, and what they return may be anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.cuda import FakeBackend, FakeCuda
from fakes.drafts import Engine
from returned import Static
from test_segments import same_kv
from test_transfer import CPU, SAMPLED, Machine, machine

from specc.runtime.errors import BindError, ForwardContractError
from specc.runtime.graphs.capture import check_capturable
from specc.runtime.plan.files.plan_json import plan_text, read_plan
from specc.runtime.step import Step

CHAIN: dict[str, Any] = {"num_steps": 3, "verify": "target_only", "sampling": ["grammar"]}
TREE = SAMPLED | {"sampling": ["grammar"]}
CASES = [("EAGLE", TREE), ("STANDALONE", CHAIN), ("MULTI_LAYER_EAGLE", CHAIN), ("NGRAM", TREE)]
each_case = pytest.mark.parametrize(("algorithm", "keys"), CASES, ids=lambda case: case if type(case) is str else "")
HOST = ("grammar_begin", "grammar_end")
PROMPTS = {2: [4, 9, 2], 1: [7, 1], 4: [3] * 9}
GRAMMARS = {2: 17, 4: 23}
"""By pool row; the request in row 1 is free."""


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Stands in for torch.cuda."""
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


class Captured(Static):
    """Forwards that are captured with the launches around them, and calls of the host, which never are.

    outside: the names of what was called outside of graphs.
    """

    def __init__(self, engine: Engine, cuda: FakeCuda) -> None:
        super().__init__(engine)
        self.cuda, self.outside = cuda, list[str]()

    def _call(self, name: str, forward: Callable[..., Any], **operands: Any) -> SimpleNamespace:
        run = partial(super()._call, name, forward, **operands)
        if self.cuda.graph is None:
            self.outside.append(name)
        else:
            assert name not in HOST
            self.cuda.graph.nodes.append(run)
        return run()


class Moved(Captured):
    """Masks are at another address in every step."""

    def put(self, key: Any, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """The result as it is returned."""
        if tensor is None or key[0] != "grammar_end":
            return super().put(key, tensor)
        self.kept = [*getattr(self, "kept", []), tensor.clone()]
        return self.kept[-1]


def captured(eager: Machine, callbacks: type[Captured], cuda: FakeCuda) -> tuple[Machine, Captured, FakeBackend]:
    """The same machine, whose whole step is captured."""
    engine, backend = Engine.of_plan(eager.plan, seed=7), FakeBackend(cuda)
    around = callbacks(engine, cuda)
    step = Step(eager.plan, backend, CPU, around, engine.table, engine.kv, poison=0xA5)
    step.capture()
    return Machine(eager.plan, engine, step), around, backend


def decode_alike(eager: Machine, replaying: Machine) -> int:
    """The same tokens, state and KV rows, step by step; how many steps."""
    batches = [[4, 1], [2, 1, 4], [2], [1, 4, 2]]
    for rows in batches:
        assert replaying.decode(rows, padded=True) == eager.decode(rows, padded=True)
        states = [decoder.step.read_carry([1, 2, 4]).fields for decoder in (eager, replaying)]
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        assert same_kv(eager, replaying)
    return len(batches)


@each_case
@pytest.mark.parametrize("callbacks", [Captured, Moved])
def test_they_cut_the_step_and_nothing_else_does(
    algorithm: str, keys: dict[str, Any], callbacks: type[Captured], cuda: FakeCuda
) -> None:
    """Three graphs; what reads masks that have moved is launched, with the forwards behind it."""
    eager = machine(algorithm, 7, **keys)
    replaying, around, backend = captured(eager, callbacks, cuda)
    for decoder in (eager, replaying):
        decoder.engine.grammars |= GRAMMARS
        decoder.prefill(PROMPTS)
    backend.launched.clear()
    around.outside.clear()
    steps = decode_alike(eager, replaying)
    graphs, last = eager.plan.captures, eager.plan.captures[-1]
    assert len(graphs) == 3
    replays = replaying.step.replays
    if callbacks is Captured:
        assert (backend.launched, around.outside) == ([], [*HOST] * steps)
        assert (replays.replayed, replays.moved) == (3 * steps, {})
    else:
        forwards = [node.callback for node in eager.plan.externals("step") if node.name in last.nodes]
        launches = [name for name in last.nodes if name not in {node.name for node in eager.plan.externals("step")}]
        assert (backend.launched, around.outside) == (launches * steps, [*HOST, *forwards] * steps)
        assert (replays.replayed, replays.moved) == (2 * steps, {last.name: steps})


@each_case
def test_masks_decide(algorithm: str, keys: dict[str, Any], cuda: FakeCuda) -> None:
    """The test above would notice a graph that reads the masks of its capture."""
    eager = machine(algorithm, 7, **keys)
    replaying, _, _ = captured(eager, Captured, cuda)
    eager.engine.grammars |= GRAMMARS
    for decoder in (eager, replaying):
        decoder.prefill(PROMPTS)
    with pytest.raises(AssertionError):
        decode_alike(eager, replaying)


def test_the_target_runs_between_them() -> None:
    """The host is told the nodes before the forward is queued, and asked for masks behind it."""
    for algorithm, keys in CASES:
        plan = machine(algorithm, 7, **keys).plan
        calls = [node.callback for node in plan.externals("step")]
        begin = calls.index("grammar_begin")
        assert calls[begin : begin + 3] == ["grammar_begin", "target", "grammar_end"]
        assert plan.restricts
        assert {totals.host_syncs for totals in plan.totals.values()} == {2}


def test_a_program_without_grammars_asks_nobody() -> None:
    """Neither calls nor a cut."""
    plan = machine("EAGLE", 7, **SAMPLED).plan
    assert not plan.restricts
    assert len(plan.captures) == 1
    assert {totals.host_syncs for totals in plan.totals.values()} == {0}


def test_no_row_of_a_vocabulary_lies_in_memory() -> None:
    """Logits are changed where they are read, by the filters and by the draw; f32 rows would be in the plan."""
    for listed, launches in ((["grammar"], 1), (["grammar", "penalties", "logit_bias", "top_k", "top_p", "min_p"], 2)):
        plan = machine("EAGLE", 7, **SAMPLED | {"sampling": listed}).plan
        wide = [value for value in plan.values.values() if value.axes[-1:] in (("V",), (str(plan.size("V")),))]
        assert {plan.buffers[value.buffer].owner for value in wide} == {"engine"}
        readers = [node for node in plan.nodes("step") if any(call.op == "sample.allow" for call in node.ops)]
        assert len(readers) == launches


@pytest.mark.parametrize("mode", ["rejection", "block"])
@pytest.mark.parametrize("algorithm", ["EAGLE", "MULTI_LAYER_EAGLE", "DFLASH"])
def test_no_row_that_drafts_were_drawn_from_is_copied(algorithm: str, mode: str) -> None:
    """What is drawn from is read where the forwards left it, and where it is carried; no probability is written."""
    sampling = ["grammar", "penalties", "logit_bias", "top_p"]
    models = {"target": {"dtype": "bfloat16"}, "draft": {"dtype": "bfloat16"}}
    plan = machine(algorithm, 7, verify=mode, sampling=sampling, num_steps=3, **models).plan
    wide = [value for value in plan.values.values() if value.axes[-1:] in (("V",), ("Vd",), (str(plan.size("V")),))]
    assert {plan.buffers[value.buffer].owner for value in wide} == {"engine"}
    assert {call.op for node in plan.nodes("step") if node.name.startswith("torch") for call in node.ops} == set()
    carried = {name: field.dtype for name, field in plan.carry.items() if name.startswith("draft_logits")}
    assert len(carried) == {"EAGLE": 1, "MULTI_LAYER_EAGLE": 3, "DFLASH": 0}[algorithm]
    assert set(carried.values()) <= {"bf16"}


@pytest.mark.parametrize(
    "change",
    [lambda nodes: nodes.insert(0, "grammar_begin"), lambda nodes: nodes.pop()],
    ids=["with a call", "without a launch"],
)
def test_a_plan_that_captures_something_else_is_refused(change: Callable[[list[str]], None]) -> None:
    plan = machine("EAGLE", 7, **TREE).plan
    document = json.loads(plan_text(plan))
    change(document["captures"][0]["nodes"])
    with pytest.raises(BindError, match="does not capture"):
        check_capturable(read_plan(document))
    check_capturable(plan)


def test_what_is_no_mask_is_refused() -> None:
    """As results of forwards: named, with what was expected."""
    decoder = machine("STANDALONE", 7, **CHAIN)
    decoder.prefill(PROMPTS)
    right = decoder.engine.forward_grammar_end

    def wrong(**operands: Any) -> Any:
        return SimpleNamespace(bitmask=right(**operands).bitmask.long())

    decoder.engine.forward_grammar_end = wrong
    with pytest.raises(ForwardContractError, match=r"grammar_end returned bitmask as torch\.int64"):
        decoder.decode([2])
