"""Captured runs of launches between forwards that are not captured, on a torch.cuda that only writes down."""

from __future__ import annotations

import gc
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from chains import make_engine, start
from fakes.cuda import GRAPH_BYTES, FakeBackend, FakeCuda
from fakes.drafts import Engine
from fakes.plans import chain_plan, lookup_plan, program_of
from programs import planned
from returned import Fresh, Static
from test_step import CPU, VARIANTS, decode
from test_transfer import CASES, IDS, TREE, Machine, machine, plugin, text

from specc.runtime import program as program_module
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.errors import BindError, PlanError
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.program import Program
from specc.runtime.step import Step

__all__ = ["plugin"]
SEGMENTS = ["prepare_rows", "draft_argmax_0", "draft_argmax_1", "verify_argmax", "extend_argmax"]
PROMPTS = {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2], 2: [1]}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Stands in for torch.cuda."""
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


def bind(plan: dict[str, Any], callbacks: object, engine: Any, backend: FakeBackend, **more: Any) -> Step:
    """A step with captured segments; `engine` has the request table."""
    step = Step(read_plan(plan), backend, CPU, callbacks, engine.table, poison=0xFF, **more)
    step.capture("segments")
    return step


def test_every_segment_is_captured_without_its_forwards(cuda: FakeCuda) -> None:
    """Warm-up first; then the largest bucket. A forward runs in no capture, and on what the segment before computes."""
    plan = chain_plan()
    engine, backend = make_engine(plan), FakeBackend(cuda)
    seen: list[Any] = []
    real = engine.target
    engine.target = lambda **operands: (seen.append(cuda.graph), real(**operands))[1]  # type: ignore[method-assign]
    step = bind(plan, engine, engine, backend)
    assert [rows for name, rows in engine.calls if name == "target"] == [4, 4, 2, 2, 1, 1, 4, 2, 1]
    assert seen == [None] * 9
    assert [name for name, _ in cuda.log] == ["begin", "end", "replay"] * 3 * len(SEGMENTS)
    assert {pool for name, pool in cuda.log if name == "begin"} == {"pool"}
    assert (step.replays.replayed, step.replays.moved) == (0, {})
    assert gc.isenabled()


@pytest.mark.parametrize(("hidden", "overlap"), VARIANTS)
def test_replays_decode_what_eager_steps_decode(hidden: bool, overlap: bool, cuda: FakeCuda) -> None:
    """Batches of every size, rows in any order; nothing is launched outside of a graph."""
    plan = chain_plan(hidden=hidden, overlap=overlap)
    engine, backend = make_engine(plan), FakeBackend(cuda)
    step = bind(plan, Static(engine), engine, backend)
    oracles = start(step, engine, PROMPTS, 3)
    backend.launched.clear()
    batches = [[3, 1, 6, 2], [6], [2, 3], [1, 6, 3], [3], [2, 1, 3, 6]]
    for rows in batches:
        decode(step, oracles, rows)
    assert backend.launched == []
    assert (step.replays.replayed, step.replays.moved) == (len(batches) * len(SEGMENTS), {})


def test_a_segment_whose_operands_moved_is_launched(cuda: FakeCuda) -> None:
    """Whatever a forward returned at capture is out of date; only what reads no forward is replayed."""
    plan = chain_plan(hidden=True)
    engine, backend = make_engine(plan), FakeBackend(cuda)
    step = bind(plan, Fresh(engine), engine, backend)
    oracles = start(step, engine, PROMPTS, 3)
    backend.launched.clear()
    for rows in ([3, 1, 6, 2], [6], [1, 6, 3]):
        decode(step, oracles, rows)
    assert backend.launched == ["draft_argmax_0", "draft_argmax_1", "verify_argmax", "extend_argmax"] * 3
    assert step.replays.replayed == 3
    assert step.replays.moved == dict.fromkeys(SEGMENTS[1:], 3)


def test_the_other_segments_are_replayed(cuda: FakeCuda) -> None:
    """One forward allocates: the segments that read it are launched, and replayed when it stops."""
    plan = chain_plan(hidden=True)
    engine, backend = make_engine(plan), FakeBackend(cuda)
    callbacks = Fresh(engine, "target")
    callbacks.only = ("none",)
    step = bind(plan, callbacks, engine, backend)
    oracles = start(step, engine, PROMPTS, 3)
    for fresh, moved in ((True, 1), (False, 1), (True, 2)):
        callbacks.only = ("target",) if fresh else ("none",)
        decode(step, oracles, [3, 6])
        assert step.replays.moved == {"verify_argmax": moved}
    assert step.replays.replayed == 3 * len(SEGMENTS) - 2


class OneResult(Static):
    """Every result of the target but its logits is at another address in every step."""

    def put(self, key: Any, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """The result as it is returned."""
        if tensor is None or key[0] != "target" or key[-1] == "logits":
            return super().put(key, tensor)
        self.kept = [*getattr(self, "kept", []), tensor.clone()]
        return self.kept[-1]


def test_operands_of_every_launch_are_followed(cuda: FakeCuda) -> None:
    """What only a later launch of a segment reads: a tree's hidden rows, which are compacted after verification."""
    eager, backend = machine("EAGLE", 7, **TREE), FakeBackend(cuda)
    replaying = captured(eager, OneResult, backend)
    for decoder in (eager, replaying):
        decoder.prefill({2: [4, 9, 2], 1: [7, 1]})
    backend.launched.clear()
    for rows in ([2, 1], [1], [1, 2]):
        assert replaying.decode(rows, padded=True) == eager.decode(rows, padded=True)
        assert same_kv(eager, replaying)
    (segment,) = [segment.nodes for segment in eager.plan.segments if "verify_argmax" in segment.nodes]
    assert len(segment) > 1
    assert replaying.step.replays.moved == {segment[0]: 3}


def test_addresses_are_kept_for_every_bucket(cuda: FakeCuda) -> None:
    """Results in static memory, at another place in every bucket."""
    plan = chain_plan()
    engine, backend = make_engine(plan), FakeBackend(cuda)
    step = bind(plan, Static(engine), engine, backend)
    assert step._graphs is not None
    places = {key: recorded.places for key, recorded in step._graphs._recorded.items()}  # type: ignore[union-attr]
    assert set(places) == {(bucket, name) for bucket in (1, 2, 4) for name in SEGMENTS}
    assert all(places[bucket, "prepare_rows"] == [] for bucket in (1, 2, 4))
    assert len({tuple(places[bucket, "verify_argmax"]) for bucket in (1, 2, 4)}) == 3


@pytest.mark.parametrize("returns", [Static, Fresh])
def test_graphs_outlive_the_requests_they_served(returns: type[Static], cuda: FakeCuda) -> None:
    """Requests are retracted in the middle, come back on other rows with their text, and others take their rows."""
    rng, plan = random.Random(5), chain_plan(hidden=True, overlap=True)
    engine, backend = make_engine(plan), FakeBackend(cuda)
    step = bind(plan, returns(engine), engine, backend)
    running = start(step, engine, PROMPTS, 3)
    for _ in range(15):
        decode(step, running, rng.sample(sorted(running), rng.randint(1, len(running))))
        gone = rng.sample(sorted(running), 2)
        waiting = [running.pop(row).text for row in gone]
        free = [row for row in range(1, 8) if row not in running]
        rows = rng.sample([row for row in free if row not in gone], 1) + rng.sample(gone, 1)
        prompts = [rng.choice(waiting)[:40], [rng.randrange(32) for _ in range(rng.randint(1, 5))]]
        running |= start(step, engine, dict(zip(rows, prompts, strict=True)), 3)
    assert cuda.captures == 3 * len(SEGMENTS)  # at bind, and never again
    assert step.replays.replayed + step.replays.moved.total() == 15 * len(SEGMENTS)


@pytest.mark.parametrize(("algorithm", "keys"), CASES, ids=IDS)
def test_every_algorithm_replays_what_it_runs(algorithm: str, keys: dict[str, Any], cuda: FakeCuda) -> None:
    """Eager steps, replays of static results and of fresh ones: the same tokens, state and KV rows, step by step."""
    eager = machine(algorithm, 7, **keys)
    backends = [FakeBackend(cuda), FakeBackend(cuda)]
    machines = [eager, *(captured(eager, *how) for how in zip((Static, Fresh), backends, strict=True))]
    rng = random.Random(len(algorithm))
    prompts = {row: text(rng) for row in (2, 4, 1)}
    for decoder in machines:
        decoder.prefill(prompts)
    for backend in backends:
        backend.launched.clear()
    for rows in ([4, 1], [2, 1, 4], [2], [1, 4, 2]):
        tokens, *others = [decoder.decode(rows, padded=True) for decoder in machines]
        assert others == [tokens, tokens]
        state, *states = [decoder.step.read_carry([1, 2, 4]).fields for decoder in machines]
        assert all(torch.equal(state[name], fields[name]) for fields in states for name in state)
        assert all(same_kv(eager, replaying) for replaying in machines[1:])
    static, fresh = (decoder.step.replays for decoder in machines[1:])
    launches = [n for segment in eager.plan.segments for n in segment.nodes]
    assert (backends[0].launched, static.moved) == ([], {})
    assert static.replayed == 4 * len(eager.plan.segments)
    (behind,) = (segment.name for segment in eager.plan.segments if segment.phases[0] == "verify")
    assert fresh.moved[behind] == 4  # of the target
    assert fresh.replayed + fresh.moved.total() == static.replayed
    assert set(backends[1].launched) < set(launches)


def captured(eager: Machine, returns: type[Static], backend: FakeBackend) -> Machine:
    """The same machine, with captured segments."""
    engine = Engine.of_plan(eager.plan, seed=7)
    step = Step(eager.plan, backend, CPU, returns(engine), engine.table, engine.kv, poison=0xA5)
    step.capture("segments")
    return Machine(eager.plan, engine, step)


def same_kv(first: Machine, second: Machine) -> bool:
    """Whether the rows of the committed text are the same."""
    contents = [[each.engine.content(row, length) for row, length in first.lengths.items()] for each in (first, second)]
    pairs = (
        (first_rows, second_rows)
        for rows in zip(*contents, strict=True)
        for first_rows, second_rows in zip(*rows, strict=True)
    )
    return all(torch.equal(first_rows, second_rows) for first_rows, second_rows in pairs)


@pytest.mark.parametrize("moved", ["corpus", "req_to_token"])
def test_a_table_that_moved_is_refused(moved: str, cuda: FakeCuda) -> None:
    plan = lookup_plan()
    engine = make_engine(chain_plan())
    engine.prompts[1] = [3]
    tables = {"corpus": torch.tensor([3, 1, 4], dtype=torch.int32)}
    step = bind(plan, Static(engine), engine, FakeBackend(cuda), tables=tables)
    step.prefill(Batch([1], [1], [3]))
    step.decode(Batch([1]))
    table = (tables | {"req_to_token": engine.table})[moved]
    table.set_(table.clone())
    with pytest.raises(BindError, match=f"{moved} has moved"):
        step.decode(Batch([1]))
    assert step.replays.replayed == len(plan["segments"])


def test_kv_buffers_that_moved_are_refused(cuda: FakeCuda) -> None:
    plan = planned("EAGLE", **TREE)[0]
    engine = Engine.of_plan(plan, seed=1)
    step = Step(plan, FakeBackend(cuda), CPU, Static(engine), engine.table, engine.kv)
    step.capture("segments")
    step.prefill(Batch([1], [3]))
    step.decode(Batch([1], [3]))
    engine.kv["draft"][1].set_(engine.kv["draft"][1].clone())
    with pytest.raises(BindError, match="KV buffers have moved"):
        step.decode(Batch([1], [4]))


def test_an_empty_batch_replays_the_smallest_bucket(cuda: FakeCuda) -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    step = bind(plan, Static(engine), engine, FakeBackend(cuda))
    assert step.decode(Batch([], [])).predict.shape[0] == 0
    assert step.replays.replayed == 0
    assert step.decode(Batch([], []), at_least=1).predict.shape[0] == 0
    assert step.replays.replayed == len(SEGMENTS)


def test_graphs_are_part_of_the_memory(cuda: FakeCuda) -> None:
    """Per bucket the sum over its graphs; the fake reserves more from one capture to the next."""
    plan = chain_plan()
    engine = make_engine(plan)
    memory = bind(plan, Static(engine), engine, FakeBackend(cuda)).memory
    assert memory.arena == plan["memory"]["arena"]
    sums = {bucket: sum(range(1 + 5 * place, 6 + 5 * place)) for place, bucket in enumerate((4, 2, 1))}
    assert memory.graphs == {bucket: GRAPH_BYTES * total for bucket, total in sums.items()}


@pytest.mark.parametrize(("algorithm", "keys"), CASES, ids=IDS)
def test_memory_is_what_the_plan_says(algorithm: str, keys: dict[str, Any]) -> None:
    """To the byte; counted from tensors here, from declarations in the plan."""
    bound = machine(algorithm, 1, **keys)
    memory = bound.step.memory
    assert {"arena": memory.arena, "relay": memory.relay, "scratch": memory.scratch} == vars(bound.plan.memory)
    assert memory.relay == sum(pool.nbytes for pool in bound.step._pools.values())
    assert 0 < memory.relay < memory.arena
    assert 0 < memory.scratch < memory.arena
    assert memory.graphs == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda segments: segments.pop(),
        lambda segments: segments.reverse(),
        lambda segments: segments[3]["nodes"].append("extend_argmax"),
        lambda segments: segments[0]["nodes"].append("draft_0"),
    ],
)
def test_segments_must_be_the_runs_of_launches(change: Any) -> None:
    plan = chain_plan()
    change(plan["segments"])
    with pytest.raises(PlanError, match="segments are"):
        read_plan(plan)


def test_what_is_captured_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA everything, or all but the forwards; on a CPU nothing."""
    asked: list[Any] = []
    fake = SimpleNamespace(capture=lambda how: asked.append(how))
    monkeypatch.setattr(program_module, "Step", lambda *arguments, **shared: fake)
    monkeypatch.setattr(program_module, "allocate", lambda plans, device: None)
    plan = read_plan(chain_plan())
    gpu = Program((plan,), program_of(plan).manifest, torch.device("cuda", 0), ReferenceBackend())
    for program in (gpu, program_of(plan)):
        for callbacks in (SimpleNamespace(capturable=True), SimpleNamespace(capturable=False), SimpleNamespace()):
            program.bind(callbacks, torch.zeros(1))
    assert asked == [True, "segments", "segments"]
    for capture in (True, False, "segments"):
        gpu.bind(SimpleNamespace(), torch.zeros(1), capture=capture)
    assert asked[3:] == [True, "segments"]
    with pytest.raises(BindError, match="only a program on CUDA"):
        program_of(plan).bind(SimpleNamespace(), torch.zeros(1), capture="segments")
    with pytest.raises(BindError, match="got 'step'"):
        gpu.bind(SimpleNamespace(), torch.zeros(1), capture="step")  # type: ignore[arg-type]
