"""The real `Graphs`, on a torch.cuda that only writes down what it is told.

A replay of the fake runs the whole step again on the captured frame, forwards included, as a CUDA graph would: on the
same static memory, with no list, batch or Python argument of the new step in reach.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from chains import make_engine, start
from fakes.cuda import FakeCuda
from fakes.plans import chain_plan, node_of
from test_step import CPU, VARIANTS, decode

from specc.runtime import step as step_module
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.errors import BindError
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.step import Step

Events = list[tuple[str, Any]]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """Everything that capturing asks of torch.cuda, in order."""
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    return cuda.log


def captured_step(plan: dict[str, Any], engine: Any, events: Events, monkeypatch: pytest.MonkeyPatch) -> Step:
    """A step whose graphs replay their own nodes; runs of the step are written to the log."""
    run = Step._run

    def logged(self: Step, entry: str, frame: Any, *more: Any) -> Any:
        events.append((entry, frame.rows))
        return run(self, entry, frame, *more)

    monkeypatch.setattr(step_module.Step, "_run", logged)
    step = Step(read_plan(plan), ReferenceBackend(), CPU, engine, engine.table, poison=0xFF)
    step._arena.buffer("req_pool_indices").copy_(torch.arange(1, 5))  # as the last batch left it
    step._arena.buffer("seq_lens").fill_(3)
    step.capture()
    assert step._graphs is not None
    for bucket, graph in step._graphs._graphs.items():
        graph.nodes = [partial(run, step, "step", step._graphs._frames[bucket])]
    return step


def test_warm_up_comes_before_any_capture(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code is loaded and workspaces are sized eagerly; then buckets are captured, the largest first.

    All of it runs padding rows, whatever batch was the last.
    """
    plan, rows = chain_plan(), list[int]()
    engine = make_engine(plan)
    engine.on_call = lambda name, operands: rows.extend(operands["rows"].tolist())
    captured_step(plan, engine, events, monkeypatch)
    assert rows and not any(rows)
    names = [name for name, _ in events]
    first = names.index("begin")
    assert [rows for name, rows in events[:first] if name == "step"] == [4, 4, 2, 2, 1, 1]
    assert names[first - 1] == "synchronize"
    assert names[first:] == ["begin", "step", "end"] * 3
    assert [rows for name, rows in events[first:] if name == "step"] == [4, 2, 1]
    assert {pool for name, pool in events if name in ("begin", "end")} == {"pool"}


def test_what_forwards_returned_is_let_go(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of other buckets may be given its memory; what an output reads stays."""
    plan = chain_plan(hidden=True)
    value = node_of(plan, "target")["results"]["hidden"]
    plan["outputs"].append({"name": "states", "value": value, "entry": "step"})
    step = captured_step(plan, make_engine(plan), events, monkeypatch)
    assert step._graphs is not None
    for frame in step._graphs._frames.values():  # type: ignore[union-attr]
        assert list(frame._engine) == [plan["values"][value]["buffer"]]
        assert len(frame.output(value, 1)) == 1


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
    assert (step.replays.replayed, step.replays.moved) == (6, {})


def test_a_plan_cut_into_pieces_is_not_captured(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = chain_plan()
    plan["captures"][0]["nodes"] = plan["captures"][0]["nodes"][1:]
    with pytest.raises(BindError, match="bind with capture=False"):
        captured_step(plan, make_engine(plan), events, monkeypatch)
    assert not events


def test_an_empty_batch_replays_the_smallest_bucket(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = chain_plan()
    step = captured_step(plan, make_engine(plan), events, monkeypatch)
    assert step.decode(Batch([], []), at_least=1).predict.shape[0] == 0
