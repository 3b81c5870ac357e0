"""One binding for several shapes: state, memory, graphs and what they guard are those of all of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
import torch
from fakes.cuda import FakeBackend, FakeCuda
from fakes.drafts import Engine
from fakes.plans import program_of
from programs import brought, planned
from returned import Fresh, Static
from test_transfer import CASES, CPU, IDS, Machine, plugin, text

from specc.runtime import program as program_module
from specc.runtime.backends import Backend
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.errors import BatchError, BindError
from specc.runtime.memory.arena import allocate
from specc.runtime.plan.nodes import Launch
from specc.runtime.plan.plan import Plan
from specc.runtime.program import Program
from specc.runtime.step import Step

__all__ = ["plugin"]
STEPS = [1, 2, 3]
BUCKETS = [1, 2, 4]
ONE_DEPTH = "MULTI_LAYER_EAGLE"
SEVERAL = [(case, name) for case, name in zip(CASES, IDS, strict=True) if case[0] != ONE_DEPTH]
each_case = pytest.mark.parametrize(
    ("algorithm", "keys"), [case for case, _ in SEVERAL], ids=[name for _, name in SEVERAL]
)


def plans_of(algorithm: str, steps: list[int] = STEPS, **keys: Any) -> list[Plan]:
    """The plans of all depths, the deepest first."""
    keys |= {"options": {"window": 64}} if algorithm == "NGRAM" else {}
    return [*planned(algorithm, **keys | {"num_steps": steps, "buckets": BUCKETS, "max_requests": 6})]


def bind(plans: Sequence[Plan], seed: int) -> Machine:
    """A program of these depths, bound on the CPU."""
    engine = Engine.of_plan(plans[0], seed=seed)
    program = Program(plans, program_of(plans[0]).manifest, CPU, ReferenceBackend(brought()))
    return Machine(plans[0], engine, program.bind(engine, engine.table, engine.kv))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Stands in for torch.cuda, with a new memory pool whenever it is asked for one."""
    fake, pools = FakeCuda(), count()
    fake.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    return fake


@pytest.fixture
def captured(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Bind a program on CUDA whose memory is on the CPU."""

    def on_the_cpu(plan: Plan, backend: Backend, _: torch.device, *given: Any, **how: Any) -> Step:
        return Step(plan, backend, CPU, *given, **how)

    monkeypatch.setattr(program_module, "Step", on_the_cpu)
    monkeypatch.setattr(program_module, "allocate", lambda plans, device: allocate(plans, CPU, poison=0xA5))

    def run(plans: Sequence[Plan], seed: int, returns: type[Static] = Static, **how: Any) -> Machine:
        engine = Engine.of_plan(plans[0], seed=seed)
        program = Program(plans, program_of(plans[0]).manifest, torch.device("cuda", 0), FakeBackend(cuda))
        return Machine(plans[0], engine, program.bind(returns(engine), engine.table, engine.kv, **how))

    return run


def test_a_step_knows_its_shape_and_the_others() -> None:
    step = bind(plans_of("EAGLE"), 1).step
    assert step.shape.num_steps == 3
    for steps in STEPS:
        assert step.at(steps).shape.num_steps == steps
        assert step.at(steps).at(3) is step
    with pytest.raises(BindError, match="not compiled for the shape 4; there is 1, 2, 3"):
        step.at(1).at(4)
    alone = bind(plans_of("EAGLE", [3]), 1).step
    assert alone.at(3) is alone
    with pytest.raises(BindError, match=r"there is 3$"):
        alone.at(1)


def test_the_program_has_its_plans_deepest_first() -> None:
    plans = plans_of("EAGLE")
    program = Program(plans[::-1], program_of(plans[0]).manifest, CPU, ReferenceBackend(brought()))
    assert list(program.plans.items()) == [(plan.shape, plan) for plan in plans]
    assert program.plan is plans[0]


@each_case
def test_shapes_have_one_memory(algorithm: str, keys: dict[str, Any]) -> None:
    """As large as that of the largest, and pool rows that every depth sees."""
    plans = plans_of(algorithm, **keys)
    machine = bind(plans, 1)
    steps = [machine.step.at(steps) for steps in STEPS]
    assert {step.memory.arena for step in steps} == {max(plan.memory.arena for plan in plans)}
    assert len({step.memory.relay for step in steps}) == 1
    rng = random.Random(3)
    machine.prefill({row: text(rng) for row in (2, 5)})
    states = [step.read_carry([2, 5]).fields for step in steps]
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(state[name], states[0][name]) for name in state)


@each_case
def test_a_depth_is_as_good_as_a_program_of_its_own(algorithm: str, keys: dict[str, Any]) -> None:
    """Tokens, lengths and what is carried, for depths held from the first step on.

    Not of one step: alone it may ask a forward for less, and what these forwards return depends on what they are asked.
    """
    for steps in STEPS[1:]:
        several = bind(plans_of(algorithm, **keys), 2)
        several.step = several.step.at(steps)
        nodes = several.step._plan.size("N")
        own = bind(plans_of(algorithm, [steps], **keys | {"num_draft_tokens": nodes}), 2)
        rng = random.Random(steps)
        prompts = {row: text(rng) for row in (4, 1, 6)}
        for machine in (own, several):
            machine.prefill(prompts)
        for rows in ([4, 1, 6], [6], [1, 4], [4, 6, 1]):
            assert several.decode(rows) == own.decode(rows)
        mine, expected = several.step.read_carry([1, 4, 6]).fields, own.step.read_carry([1, 4, 6]).fields
        assert all(torch.equal(mine[name], expected[name]) for name in expected)


@each_case
@pytest.mark.parametrize("returns", [Static, Fresh])
def test_replays_of_changing_depths_are_what_eager_steps_are(
    algorithm: str, keys: dict[str, Any], returns: type[Static], captured: Any
) -> None:
    """Segments of every depth; no graph is captured after the program was bound."""
    plans = plans_of(algorithm, **keys)
    eager, graphs = bind(plans, 7), captured(plans, 7, returns, capture="segments")
    rng = random.Random(len(algorithm))
    prompts = {row: text(rng) for row in (2, 4, 1)}
    for machine in (eager, graphs):
        machine.prefill(prompts)
    segments = 0
    for rows in ([4, 1], [2, 1, 4], [2], [1, 4, 2], [2, 4], [1]):
        depth = rng.choice(STEPS)
        eager.step, graphs.step = eager.step.at(depth), graphs.step.at(depth)
        assert graphs.decode(rows) == eager.decode(rows, padded=True)
        mine, expected = (machine.step.read_carry([1, 2, 4]).fields for machine in (graphs, eager))
        assert all(torch.equal(mine[name], expected[name]) for name in expected)
        segments += len(next(plan for plan in plans if plan.size("S") == depth).segments)
    for steps in STEPS:
        replays = graphs.step.at(steps).replays
        assert replays.replayed + replays.moved.total() == segments
        assert (replays.moved.total() == 0) is (returns is Static)


@pytest.mark.parametrize("capture", [True, "segments"])
def test_every_depth_has_graphs_of_every_bucket_in_one_pool(capture: Any, captured: Any, cuda: FakeCuda) -> None:
    plans = plans_of("EAGLE")
    step: Step = captured(plans, 1, capture=capture).step
    graphs = [1 if capture is True else len(plan.segments) for plan in plans]
    assert cuda.captures == len(BUCKETS) * sum(graphs)
    assert {pool for name, pool in cuda.log if name in ("begin", "end")} == {0}
    for steps, number in zip((3, 2, 1), graphs, strict=True):
        own = step.at(steps)._graphs
        assert own is not None
        assert own.recorder.pool == 0
        assert own.recorder.stream is step._graphs.recorder.stream  # type: ignore[union-attr]
        recorded = own._graphs if capture is True else own._recorded  # type: ignore[union-attr]
        assert len(recorded) == len(BUCKETS) * number
        assert step.at(steps).memory.graphs.keys() == set(BUCKETS)


@pytest.mark.parametrize("capture", [True, "segments"])
def test_replays_are_counted_together(capture: Any, captured: Any) -> None:
    plans = plans_of("STANDALONE")
    machine = captured(plans, 1, capture=capture)
    machine.prefill({3: [5, 6]})
    wanted = 0
    for steps in (1, 3, 3, 2):
        machine.step = machine.step.at(steps)
        machine.decode([3])
        wanted += 1 if capture is True else len(next(plan for plan in plans if plan.size("S") == steps).segments)
        assert {machine.step.at(other).replays.replayed for other in STEPS} == {wanted}


@pytest.mark.parametrize("moved", ["table", "kv"])
@pytest.mark.parametrize("capture", [True, "segments"])
def test_what_has_moved_is_noticed_at_every_depth(moved: str, capture: Any, captured: Any) -> None:
    plans = plans_of("EAGLE", topk=2, num_draft_tokens=6)
    machine = captured(plans, 1, capture=capture)
    machine.prefill({3: [5, 6]})
    machine.decode([3])
    replayed = machine.step.replays.replayed
    tensor = machine.engine.table if moved == "table" else machine.engine.kv["target"][1]
    tensor.set_(tensor.clone())
    for steps in STEPS:
        machine.step = machine.step.at(steps)
        with pytest.raises(BindError, match="req_to_token has moved" if moved == "table" else "KV buffers have moved"):
            machine.decode([3])
    assert machine.step.replays.replayed == replayed


@pytest.mark.parametrize("capture", [True, "segments"])
def test_depths_may_be_captured_after_they_were_bound(capture: Any, captured: Any, cuda: FakeCuda) -> None:
    """From any of them, all at once, between two steps; what bind would have captured, and never twice."""
    plans = plans_of("EAGLE")
    eager, graphed = bind(plans, 7), captured(plans, 7, capture=False)
    rng = random.Random(5)
    prompts = {row: text(rng) for row in (2, 4)}
    for machine in (eager, graphed):
        machine.prefill(prompts)
    assert graphed.decode([4, 2]) == eager.decode([4, 2])
    assert cuda.captures == 0
    graphed.step.at(1).capture(capture)
    graphs = [1 if capture is True else len(plan.segments) for plan in plans]
    assert cuda.captures == len(BUCKETS) * sum(graphs)
    assert {pool for name, pool in cuda.log if name in ("begin", "end")} == {0}
    if capture == "segments":  # graphs of the whole step have no nodes in the fake
        assert [graphed.decode(rows) for rows in ([2], [4, 2])] == [eager.decode(rows) for rows in ([2], [4, 2])]
        assert graphed.step.replays.replayed == 2 * len(plans[0].segments)
    for steps in STEPS:
        with pytest.raises(BindError, match="captured already"):
            graphed.step.at(steps).capture(capture)
    assert cuda.captures == len(BUCKETS) * sum(graphs)


def test_a_capture_that_fails_leaves_every_depth_as_it_was(captured: Any, cuda: FakeCuda) -> None:
    plans = plans_of("EAGLE")
    eager, graphed = bind(plans, 7), captured(plans, 7, capture=False)
    for machine in (eager, graphed):
        machine.prefill({3: [5, 6]})
    real, calls = graphed.engine.target, count()

    def fail(**operands: Any) -> Any:
        if next(calls) == 12:  # the second depth's
            raise ZeroDivisionError
        return real(**operands)

    graphed.engine.target = fail
    with pytest.raises(ZeroDivisionError):
        graphed.step.capture("segments")
    assert graphed.decode([3]) == eager.decode([3])
    assert graphed.step.replays.replayed == 0
    graphed.step.capture("segments")
    assert graphed.decode([3]) == eager.decode([3])
    assert graphed.step.replays.replayed == len(plans[0].segments)


def test_what_has_moved_is_not_captured(captured: Any) -> None:
    machine = captured(plans_of("EAGLE", topk=2, num_draft_tokens=6), 1, capture=False)
    with pytest.raises(BindError, match="True or 'segments', got False"):
        machine.step.capture(False)
    machine.engine.table.set_(machine.engine.table.clone())
    with pytest.raises(BindError, match="req_to_token has moved"):
        machine.step.capture("segments")


SOME = [
    {"num_steps": 3, "topk": 3, "num_draft_tokens": 10, "buckets": [1, 2]},
    {"num_steps": 2, "buckets": [2, 4]},
    {"num_steps": 0, "buckets": [4, 6]},
]
"""Shapes with buckets of their own; the deepest has the smallest."""


def of_some_buckets(algorithm: str, seed: int, **keys: Any) -> Machine:
    """A bound program of shapes with buckets of their own."""
    keys |= {"options": {"window": 64}} if algorithm == "NGRAM" else {}
    plans = planned(algorithm, shapes=SOME, buckets=[1, 2, 4, 6], max_requests=8, page_size=16, **keys)
    return bind(plans, seed)


@pytest.mark.parametrize("algorithm", ["EAGLE", "STANDALONE", "NGRAM"])
@pytest.mark.parametrize("verify", ["greedy", "target_only"])
def test_any_shape_prefills_as_many_as_the_largest_holds(algorithm: str, verify: str) -> None:
    """As a program of the largest shape alone would, and whoever is decoded afterwards goes on from there."""
    machine, rng = of_some_buckets(algorithm, 1, verify=verify), random.Random(4)
    prompts = {row: text(rng) for row in (1, 2, 3, 5, 7, 8)}
    step = machine.step
    assert step.shape.num_steps == 3
    assert {str(shape): buckets for shape, buckets in step.buckets.items()} == {
        "3x3x10": (1, 2),
        "2": (2, 4),
        "0": (4, 6),
    }
    machine.prefill(prompts)
    twin = of_some_buckets(algorithm, 1, verify=verify)
    twin.step = twin.step.at("0")
    twin.prefill(prompts)
    states = [runner.step.read_carry([*prompts]).fields for runner in (machine, twin)]
    for name, field in states[0].items():
        if name != "sampling_seed":
            assert torch.equal(field, states[1][name]), name
    for shape, rows in [("0", [*prompts]), ("2", [8, 1, 3, 2]), ("3x3x10", [7, 5]), ("3x3x10", [2])]:
        machine.step = step.at(shape)
        assert len(machine.decode(rows, padded=True)) == len(rows)
    with pytest.raises(BatchError, match=r"^7 requests, the largest bucket of the shape 0 holds 6$"):
        step.prefill(Batch(list(range(1, 8)), [1] * 7, [0] * 7 if algorithm == "NGRAM" else None))


def test_a_batch_that_a_shape_does_not_hold_is_told_which_do() -> None:
    machine = of_some_buckets("EAGLE", 1)
    machine.prefill({row: [1, 2, 3] for row in range(1, 7)})
    states = machine.step.read_carry(list(range(1, 7))).fields
    for shape, rows, message in [
        ("3x3x10", 3, "3 requests, the largest bucket of the shape 3x3x10 holds 2; 0, 2 hold them"),
        ("2", 5, "5 requests, the largest bucket of the shape 2 holds 4; 0 holds them"),
        ("0", 7, "7 requests, the largest bucket of the shape 0 holds 6"),
    ]:
        step = machine.step.at(shape)
        with pytest.raises(BatchError, match=f"^{message}$"):
            step.decode(Batch(list(range(1, rows + 1)), [3] * rows))
        at_least = f"at least {rows} rows, {message.partition(', ')[2]}"
        with pytest.raises(BatchError, match=f"^{at_least}$"):
            step.decode(Batch([1], [3]), at_least=rows)
    after = machine.step.read_carry(list(range(1, 7))).fields
    assert all(torch.equal(after[name], states[name]) for name in states)


def test_a_shape_reserves_for_its_own_largest_batch() -> None:
    """A tree of one request costs no memory of sixty-four; what is carried is as large as ever."""
    tree = {"num_steps": 3, "topk": 4, "num_draft_tokens": 16}
    shapes = [tree | {"buckets": [1]}, {"num_steps": 3}]
    small, chain = planned("EAGLE", shapes=shapes, buckets=[1, 64], page_size=16)
    large, _ = planned("EAGLE", shapes=[tree, {"num_steps": 3}], buckets=[1, 64], page_size=16)
    (alone,) = planned("EAGLE", **tree, buckets=[1], max_requests=64, page_size=16)
    assert small.memory.relay == chain.memory.relay == large.memory.relay
    assert small.memory.arena - small.memory.relay < (large.memory.arena - large.memory.relay) / 16
    assert small.dims == alone.dims
    assert small.totals.keys() == {1}
    assert all(set(node.grid) == {1} for node in small.nodes("step") if isinstance(node, Launch))


def test_graphs_are_of_the_buckets_of_their_shape(cuda: FakeCuda, captured: Any) -> None:
    plans = planned("EAGLE", shapes=SOME, buckets=[1, 2, 4, 6], page_size=16)
    step = captured(plans, 1, capture=True).step
    graphs = {str(shape): tuple(sorted(step.at(shape).memory.graphs)) for shape in step.buckets}
    assert graphs == {str(shape): buckets for shape, buckets in step.buckets.items()}
    assert cuda.captures == sum(map(len, graphs.values()))
