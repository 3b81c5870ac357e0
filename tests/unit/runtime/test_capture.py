"""The real `Graphs`, on a torch.cuda that only writes down what it is told.

A replay of the fake runs the captured nodes again on the captured frame, as a CUDA graph would: on the same static
memory, with no list, batch or Python argument of the new step in reach.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from test_step import CPU, VARIANTS, decode
from toy_engine import make_engine, start
from toy_plan import chain_plan

from specc.runtime import step as step_module
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.errors import BindError
from specc.runtime.plan import Plan
from specc.runtime.step import Step

Events = list[tuple[str, Any]]


class FakeGraph:
    """A CUDA graph whose nodes are given after the fact."""

    def __init__(self) -> None:
        self.nodes: Callable[[], object] | None = None

    def replay(self) -> None:
        assert self.nodes is not None
        self.nodes()


class FakeStream:
    """A stream that is waited for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def wait_stream(self, other: object) -> None:
        assert other is not self


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """Everything that capturing asks of torch.cuda, in order."""
    log: Events = []

    @contextlib.contextmanager
    def graph(graph: FakeGraph, *, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        log.append(("begin", pool))
        assert isinstance(stream, FakeStream)
        assert capture_error_mode == "thread_local"
        yield
        log.append(("end", pool))

    @contextlib.contextmanager
    def stream(stream: object) -> Iterator[None]:
        log.append(("on", stream))
        yield
        log.append(("off", stream))

    fakes: dict[str, Any] = {
        "graph_pool_handle": lambda: "pool",
        "Stream": FakeStream,
        "current_stream": FakeStream,
        "stream": stream,
        "synchronize": lambda device: log.append(("synchronize", device)),
        "CUDAGraph": FakeGraph,
        "graph": graph,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return log


def captured_step(plan: dict[str, Any], engine: Any, events: Events, monkeypatch: pytest.MonkeyPatch) -> Step:
    """A step whose graphs replay their own nodes; runs of the step are written to the log."""
    run = Step._run

    def logged(self: Step, entry: str, frame: Any) -> Any:
        events.append((entry, frame.rows))
        return run(self, entry, frame)

    monkeypatch.setattr(step_module.Step, "_run", logged)
    step = Step(Plan.from_json(plan), ReferenceBackend(), CPU, engine, engine.table, capture=True, poison=0xFF)
    assert step._graphs is not None
    for bucket, graph in step._graphs._graphs.items():
        graph.nodes = partial(run, step, "step", step._graphs._frames[bucket])
    return step


def test_warm_up_comes_before_any_capture(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code is loaded and workspaces are sized eagerly; then buckets are captured, the largest first."""
    plan = chain_plan()
    captured_step(plan, make_engine(plan), events, monkeypatch)
    names = [name for name, _ in events]
    first = names.index("begin")
    assert [rows for name, rows in events[:first] if name == "step"] == [4, 4, 2, 2, 1, 1]
    assert names[first - 1] == "synchronize"
    assert names[first:] == ["begin", "step", "end"] * 3
    assert [rows for name, rows in events[first:] if name == "step"] == [4, 2, 1]
    assert {pool for name, pool in events if name in ("begin", "end")} == {"pool"}


@pytest.mark.parametrize(("hidden", "overlap"), VARIANTS)
def test_replays_decode_what_eager_steps_decode(
    hidden: bool, overlap: bool, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of every size, rows in any order, on whichever bucket holds them: the oracle's tokens."""
    plan = chain_plan(hidden=hidden, overlap=overlap)
    engine = make_engine(plan)
    step = captured_step(plan, engine, events, monkeypatch)
    oracles = start(step, engine, {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2], 2: [1]}, 3)
    events.clear()
    for rows in ([3, 1, 6, 2], [6], [2, 3], [1, 6, 3], [3], [2, 1, 3, 6]):
        decode(step, oracles, rows)
    assert not [name for name, _ in events if name in ("step", "begin")]  # replayed, neither run nor captured anew


def test_a_plan_cut_into_pieces_is_not_captured(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = chain_plan()
    plan["captures"][0]["nodes"] = plan["captures"][0]["nodes"][1:]
    with pytest.raises(BindError, match="bind with capture=False"):
        captured_step(plan, make_engine(plan), events, monkeypatch)
    assert not events


def test_an_empty_batch_replays_the_smallest_bucket(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = chain_plan()
    step = captured_step(plan, make_engine(plan), events, monkeypatch)
    assert step.decode(Batch([], []), run_idle=True).predict.shape[0] == 0
