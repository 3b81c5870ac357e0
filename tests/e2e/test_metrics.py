"""Metrics are what the completions, the launches and the plan say; counted here in another way each."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.cuda import FakeBackend, FakeCuda, FakeNvtx
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from specc.compiler.ir.ops.health import TREE_BIT
from specc.lab.engine import engine as engine_module
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import StepFailedError
from specc.lab.engine.observe.metrics import Metrics
from specc.lab.engine.serving.in_flight import InFlight
from specc.lab.engine.serving.ranges import ranges
from specc.lab.engine.serving.requests.request import Completion, StopConditions
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.entry.frame import Frame
from specc.runtime.entry.health import FAULTS
from specc.runtime.plan.nodes import Launch
from specc.runtime.plan.shape import Shape

from .tree_engine import Config, InjectedError, Launched, base_texts, expected, make_engine, program_of

NEW = 24
DOC = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
CHAIN = Config("STANDALONE", 1, 3, 4, 16, overlap=True, buckets=(1, 2, 4))
TREE = Config("EAGLE", 2, 3, 6, 4, overlap=True, buckets=(1, 4))
SERIAL = Config("EAGLE", 1, 3, 4, 1, overlap=False, buckets=(1, 2, 4))
SHAPES = pytest.mark.parametrize("config", [CHAIN, TREE, SERIAL], ids=lambda config: f"{config.algorithm}{config.topk}")


class CountingBackend(ReferenceBackend):
    """Counts launches."""

    launches = 0

    def launch(self, node: Launch, frame: Frame) -> None:
        """Count, then launch."""
        self.launches += 1
        super().launch(node, frame)


class Watch:
    """What the steps of an engine really did: rows, and launches and forwards of the decode steps that succeeded."""

    def __init__(self, engine: Any, backend: Any = None) -> None:
        """Put itself between the engine and its step functions."""
        self.step, self.backend, self.faults = engine.bound, backend, program_of(engine).faults
        self.rows: list[int] = []
        self.prefills = self.launches = self.forwards = 0
        engine.bound = self

    @property
    def replays(self) -> Any:
        """Return what the step has counted."""
        return self.step.replays

    def at(self, shape: Shape) -> Any:
        """Decode at a shape."""
        self.step = self.step.at(shape)
        return self

    def prefill(self, batch: Any, **how: Any) -> Any:
        """Prefill."""
        result = self.step.prefill(batch, **how)
        self.prefills += 1
        return result

    def decode(self, batch: Any, **how: Any) -> Any:
        """Decode."""
        launches, calls = getattr(self.backend, "launches", 0), self.faults.countdown
        result = self.step.decode(batch, **how)
        self.rows.append(len(batch.req_pool_indices))
        self.launches += getattr(self.backend, "launches", 0) - launches
        self.forwards += calls - self.faults.countdown  # which every call of a forward lowers by one
        return result


def prompts(count: int = 3) -> list[tuple[int, ...]]:
    """Prompts whose texts the heads know, and some of other lengths."""
    return [text[:cut] for cut in (33, 12) for text in base_texts()][:count]


def read(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Samples by their name and the values of their labels."""
    families = list(text_string_to_metric_families(metrics.text()))
    assert all(family.documentation.endswith(".") for family in families)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def serve(engine: Engine, conditions: StopConditions | None = None, count: int = 5) -> list[Completion]:
    """Run prompts to their end, again after every failure."""
    for prompt in prompts(count):
        engine.add(prompt, conditions or StopConditions(NEW))
    done: list[Completion] = []
    while engine.has_work:
        try:
            done += engine.step()
        except StepFailedError as error:
            if not isinstance(error.__cause__, InjectedError):
                raise
    return done


def expect_acceptance(found: dict[tuple[str, ...], float], completions: list[Completion], steps: int) -> None:
    """Everything that follows from the completions alone."""
    lengths = [length for completion in completions for length in completion.accept_lens]
    name = "specc_accepted_length_tokens"
    for most in range(1, steps + 2):
        assert found[f"{name}_bucket", f"{most}.0"] == sum(length <= most for length in lengths)
    assert found[f"{name}_bucket", "+Inf"] == found[f"{name}_count",] == len(lengths)
    assert found[f"{name}_sum",] == sum(lengths)
    for place in range(1, steps + 1):
        assert found["specc_position_drafted_total", str(place)] == len(lengths)
        assert found["specc_position_accepted_total", str(place)] == sum(length > place for length in lengths)
    assert found["specc_emitted_tokens_total",] == sum(len(completion.token_ids) for completion in completions)
    reasons = Counter(completion.finish_reason for completion in completions)
    for reason in ("length", "eos", "stop", "abort"):
        assert found["specc_finished_requests_total", reason] == reasons[reason]
    assert found["specc_retractions_total",] == sum(completion.retractions for completion in completions)


def expect_work(found: dict[tuple[str, ...], float], watch: Watch, shape: Shape) -> None:
    """What the step functions were asked for."""
    assert found["specc_decode_steps_total", str(shape)] == len(watch.rows)
    assert found["specc_prefills_total",] == watch.prefills
    assert found["specc_request_rows_total",] == sum(watch.rows)
    assert found["specc_forwards_total",] == watch.forwards


@SHAPES
def test_everything_is_counted_once(config: Config) -> None:
    engine = make_engine(config, backend=(backend := CountingBackend()))
    watch, metrics = Watch(engine, backend), Metrics(engine)
    before = read(metrics)
    completions = serve(engine, StopConditions(NEW, frozenset(expected(prompts()[1])[7:8])))
    found = read(metrics)
    assert {completion.finish_reason for completion in completions} == {"eos", "length"}
    assert len({length for completion in completions for length in completion.accept_lens}) > 1
    decoded = sum(len(completion.token_ids) - 1 for completion in completions)
    assert found["specc_accepted_length_tokens_sum",] == decoded
    expect_acceptance(found, completions, config.steps)
    expect_work(found, watch, engine.plan.shape)
    assert found["specc_kernel_launches_total",] == watch.launches > 0
    assert found["specc_eager_steps_total",] == len(watch.rows)
    assert found["specc_padding_rows_total",] == found["specc_graph_replays_total",] == 0
    assert found["specc_shared_tokens_total",] == engine.stats.shared_tokens
    seconds = {"prefill": engine.stats.prefill_seconds, "decode": engine.stats.decode_seconds}
    assert {phase: found["specc_busy_seconds_total", phase] for phase in seconds} == seconds
    pages = {("specc_free_pages",)}
    assert {key for key, value in before.items() if value} == pages
    assert len(found) > len(before) - len(pages)


@SHAPES
def test_graphs_replay_and_fill_buckets(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models return their results anywhere, so that what reads them is launched, and only the rest replayed."""
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    backend = FakeBackend(cuda)
    engine = make_engine(config, backend=backend, capture="segments")
    decode, eager = engine.bound.step.decode, Counter[str]()

    def count(batch: Any, **how: Any) -> Any:
        seen = len(backend.launched)
        result = decode(batch, **how)
        eager.update(backend.launched[seen:])
        return result

    engine.bound.step.decode = count
    watch, metrics, seen = Watch(engine), Metrics(engine), len(cuda.log)
    completions = serve(engine, count=3)
    found = read(metrics)
    expect_acceptance(found, completions, config.steps)
    expect_work(found, watch, engine.plan.shape)
    graphs = [graph for event, graph in cuda.log[seen:] if event == "replay"]
    assert found["specc_graph_replays_total",] == len(graphs) > 0
    assert found["specc_kernel_launches_total",] == sum(len(graph.nodes) for graph in graphs) + eager.total()
    segments = {segment.name: segment.nodes for segment in engine.program.plan.segments}
    moved = {key[1]: value for key, value in found.items() if key[0] == "specc_moved_segments_total"}
    assert moved == {name: eager[nodes[0]] for name, nodes in segments.items() if eager[nodes[0]]}
    assert moved
    padding = [min(bucket for bucket in config.buckets if bucket >= rows) - rows for rows in watch.rows]
    assert found["specc_padding_rows_total",] == sum(padding) > 0
    assert found["specc_eager_steps_total",] == 0


@pytest.mark.parametrize(("name", "late"), [("prefill_target", True), ("draft", False), ("extend", True)])
@SHAPES
def test_a_step_that_is_retried_counts_once(config: Config, name: str, late: bool) -> None:
    engine = make_engine(config)
    watch, metrics = Watch(engine), Metrics(engine)
    for prompt in prompts():
        engine.add(prompt, StopConditions(NEW))
    engine.step()
    engine.step()
    engine.add(prompts(4)[3], StopConditions(NEW))
    watch.faults.name, watch.faults.late = name, late
    with pytest.raises(StepFailedError):
        engine.step()
    completions = serve(engine, count=1)
    found = read(metrics)
    assert len(completions) == 5
    expect_acceptance(found, completions, config.steps)
    assert found["specc_failures_total",] == 1
    assert found["specc_decode_steps_total", str(engine.plan.shape)] == len(watch.rows)
    assert found["specc_prefills_total",] == watch.prefills


@SHAPES
def test_results_that_nobody_could_read_do_not_count(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, waits, wait = make_engine(config), [], Launched.wait

    def sometimes(self: Launched) -> Any:
        waits.append(self)
        if len(waits) in (1, 4, 5):
            raise InjectedError("the copy was lost")
        return wait(self)

    monkeypatch.setattr(Launched, "wait", sometimes)
    watch, metrics = Watch(engine), Metrics(engine)
    completions = serve(engine)
    found = read(metrics)
    assert found["specc_failures_total",] == 3
    expect_acceptance(found, completions, config.steps)
    expect_work(found, watch, engine.plan.shape)


@SHAPES
def test_requests_that_were_retracted(config: Config) -> None:
    engine = make_engine(config, memory=1.6, share_prefixes=False)
    watch, metrics = Watch(engine), Metrics(engine)
    completions = serve(engine)
    found = read(metrics)
    expect_acceptance(found, completions, config.steps)
    expect_work(found, watch, engine.plan.shape)
    assert found["specc_retractions_total",] > 0


@SHAPES
def test_requests_that_were_given_up_and_those_that_are_left(config: Config) -> None:
    engine = make_engine(config, share_prefixes=False)
    metrics, size = Metrics(engine), config.page_size
    ids = [engine.add(prompt, StopConditions(NEW)) for prompt in prompts(6)]
    for _ in range(3):
        engine.step()
    given_up = [engine.abort(ids[0]), engine.abort(ids[5])]
    found = read(metrics)
    assert (found["specc_running_requests",], found["specc_waiting_requests",]) == (3, 1)
    held = {slot // size for slot in engine.table.tensor.flatten().tolist() if slot}
    assert found["specc_free_pages",] == engine.allocator.capacity - len(held)
    completions = serve(engine, count=1)
    found = read(metrics)
    expect_acceptance(found, [*filter(None, given_up), *completions], config.steps)
    assert found["specc_finished_requests_total", "abort"] == 2
    assert not any(found[f"specc_{kind}_requests",] for kind in ("running", "waiting"))


@pytest.mark.parametrize(
    ("forward", "bit"),
    [
        ("draft", "draft"),
        ("target", "target"),
        ("extend", "extend"),
        ("prefill_target", "target"),
        ("prefill_draft", "prefill"),
    ],
)
def test_health_words_by_bit(forward: str, bit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A score that is no number, in the rows of some requests, in every call of a forward."""
    engine = make_engine(CHAIN)
    metrics, real, sick = Metrics(engine), getattr(engine.callbacks, forward), Counter[int]()

    def spoil(**arguments: Any) -> Any:
        out = real(**arguments)
        spoiled = out.logits.clone()
        for index, row in enumerate(arguments["rows"].tolist()):
            if row % 2:
                spoiled[index].flatten()[5] = torch.nan
        return replace(out, logits=spoiled)

    setattr(engine.callbacks, forward, spoil)
    emitted = InFlight.emitted

    def note(flight: InFlight, request: Any, result: Any, index: int) -> Any:
        sick[flight.is_prefill] += request.row % 2
        return emitted(flight, request, result, index)

    monkeypatch.setattr(InFlight, "emitted", note)
    serve(engine)
    found = read(metrics)
    for name in FAULTS:
        wanted = sick[forward.startswith("prefill")] if name == bit else 0
        assert found["specc_health_bits_total", name] == wanted
    assert sick[False] > sick[True] > 0
    assert FAULTS[TREE_BIT] == "tree"


def test_bits_without_a_name_go_by_their_number() -> None:
    engine = make_engine(CHAIN)
    engine.stats.saw_health([0, 1 << 9 | 1, 1 << 9, 0])
    found = read(Metrics(engine))
    assert (found["specc_health_bits_total", "draft"], found["specc_health_bits_total", "9"]) == (1, 2)


def test_steps_of_different_shapes() -> None:
    """Positions beyond a step's own depth were not drafted."""
    engine, generator = make_engine(replace(CHAIN, shallower=(1, 2))), torch.Generator().manual_seed(7)
    seen: list[tuple[int, int]] = []
    for _ in range(40):
        depth, count = (int(torch.randint(1, most, (), generator=generator)) for most in (4, 5))
        lengths = torch.randint(1, depth + 2, (count,), generator=generator).tolist()
        requests: Any = [SimpleNamespace(shared=0)] * count
        shape = Shape(depth, 1, depth + 1)
        engine.stats.launched(requests, 0.0, shape)
        for length in lengths:
            engine.stats.emitted(length, shape)
        seen += [(depth, length) for length in lengths]
    found = read(Metrics(engine))
    for place in (1, 2, 3):
        assert found["specc_position_drafted_total", str(place)] == sum(depth >= place for depth, _ in seen)
        assert found["specc_position_accepted_total", str(place)] == sum(length > place for _, length in seen)
    assert sum(found["specc_decode_steps_total", str(depth)] for depth in (1, 2, 3)) == 40
    assert found["specc_request_rows_total",] == len(seen)
    launches = {shape: plan.totals[4].launches_in_graph for shape, plan in engine.program.plans.items()}
    assert found["specc_kernel_launches_total",] == sum(
        found["specc_decode_steps_total", str(shape)] * count for shape, count in launches.items()
    )


def test_engines_do_not_clash_but_in_one_registry() -> None:
    engines = [make_engine(CHAIN) for _ in range(2)]
    serve(engines[0], count=1)
    found = [read(Metrics(engine))["specc_emitted_tokens_total",] for engine in engines]
    assert found == [NEW, 0]
    registry = CollectorRegistry()
    first = Metrics(engines[0], registry)
    with pytest.raises(ValueError, match="specc_emitted_tokens"):
        Metrics(engines[1], registry)
    registry.unregister(first)
    assert read(Metrics(engines[1], registry))["specc_emitted_tokens_total",] == 0


def test_the_table_of_the_documentation() -> None:
    """Names, types, labels and what is counted, in the same words."""
    rows = re.findall(r"^\| `(specc_\w+)(?:\{(\w+)\})?` \| (\w+) \| (.+) \|$", DOC, re.MULTILINE)
    engine = make_engine(TREE)
    engine.stats.launched([], 0.0, engine.plan.shape)
    engine.bound = SimpleNamespace(replays=SimpleNamespace(replayed=1, moved={"prepare": 1}))
    found = []
    for family in Metrics(engine).collect():
        total = "_total" if family.type == "counter" else ""
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        found.append((family.name + total, "".join(labels), family.type, family.documentation))
    assert rows == found


@pytest.mark.parametrize("wanted", [True, False])
def test_ranges_of_what_the_host_does(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA; a range ends when a forward fails within it."""
    nvtx = FakeNvtx()
    nvtx.install(monkeypatch)
    monkeypatch.setattr(engine_module, "ranges", lambda device, wanted: ranges(torch.device("cuda"), wanted))
    engine = make_engine(CHAIN, nvtx=wanted)
    plan, faults = engine.program.plan, program_of(engine).faults
    engine.add(prompts()[0], StopConditions(NEW))
    engine.step()
    assert nvtx.take() == wanted * [
        "specc.schedule",
        "specc.prefill",
        *(f"specc.prefill/{node.name}" for node in plan.nodes("prefill")),
        "specc.schedule",
        "specc.decode",
        *(f"specc.decode/{node.name}" for node in plan.nodes("step")),
        "specc.read",
    ]
    for name in ("prefill_target", "target", "extend"):
        faults.name = name
        engine.add(prompts()[1], StopConditions(NEW))
        with pytest.raises(StepFailedError):
            engine.step()
        assert nvtx.open == []
    serve(engine, count=1)
    assert nvtx.open == []
    assert bool(nvtx.take()) is wanted


def test_no_ranges_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    nvtx = FakeNvtx()
    nvtx.install(monkeypatch)
    for device, wanted in (("cpu", True), ("cpu", False), ("cuda", False)):
        with ranges(torch.device(device), wanted)("name"):
            pass
    assert nvtx.take() == []
