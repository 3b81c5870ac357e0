"""New lengths, handed over as soon as they are queued: before extend where nodes or segments are queued one by one."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from chains import batch_of, make_engine, start
from fakes.cuda import FakeBackend, FakeCuda
from fakes.drafts import Engine
from fakes.plans import chain_plan
from returned import Static
from test_step import CPU, bind
from test_transfer import CASES, IDS, machine, plugin, text
from torch import Tensor

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.errors import PlanError
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.nodes import External
from specc.runtime.step import Step

__all__ = ["plugin"]
PROMPTS = {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2]}


class Seen:
    """Lengths that were handed over, and the forwards called so far in the step each time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.lengths: list[list[int]] = []
        self.calls: list[list[str]] = []

    def __call__(self, lengths: Tensor) -> None:
        self.lengths.append(lengths.tolist())
        self.calls.append([name for name, _ in self.engine.calls])


def step_of(
    engine: Engine,
    plan: dict[str, Any],
    capture: Any,
    monkeypatch: pytest.MonkeyPatch,
    cuda: FakeCuda | None = None,
) -> Step:
    """A step that is launched node by node, or captured."""
    if not capture:
        return bind(plan, engine)
    cuda = cuda or FakeCuda()
    cuda.install(monkeypatch)
    backend = FakeBackend(cuda) if capture == "segments" else ReferenceBackend()
    step = Step(read_plan(plan), backend, CPU, Static(engine), engine.table, poison=0xFF)
    step.capture(capture)
    if capture is True:
        graphs: Any = step._graphs
        for bucket, graph in graphs._graphs.items():
            graph.nodes = [partial(step._run, "step", graphs._frames[bucket])]
    return step


@pytest.mark.parametrize("at_least", [0, 4])
@pytest.mark.parametrize("capture", [False, "segments", True])
def test_lengths_are_there_before_extend(capture: Any, at_least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph is queued as a whole: they are handed over after it."""
    plan = chain_plan(hidden=True)
    engine = make_engine(plan)
    step = step_of(engine, plan, capture, monkeypatch)
    oracles = start(step, engine, PROMPTS, 3)
    seen, wanted = Seen(engine), []
    for rows in ([3, 1, 6], [6], [1, 3]):
        engine.calls.clear()
        result = step.decode(batch_of(oracles, rows), at_least=at_least, on_commit=seen).to_host()
        for row in rows:
            oracles[row].step()
        wanted.append([len(oracles[row].text) - 1 for row in rows])
        assert result.new_seq_lens == wanted[-1]
    assert seen.lengths == wanted
    assert seen.calls == [["draft", "draft", "target"] + ["extend"] * (capture is True)] * 3


def test_an_empty_batch_commits_nothing() -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    step, seen = bind(plan, engine), Seen(engine)
    for at_least in (0, 2):
        step.decode(Batch([], []), at_least=at_least, on_commit=seen)
    assert engine.calls
    assert seen.lengths == []


@pytest.mark.parametrize(("algorithm", "keys"), CASES, ids=IDS)
def test_every_algorithm_commits_after_the_target(algorithm: str, keys: dict[str, Any]) -> None:
    """And before whatever forward follows it."""
    decoder = machine(algorithm, 7, **keys)
    calls: list[str] = []
    for name in decoder.plan.callbacks("step"):
        real = getattr(decoder.engine, name)
        setattr(decoder.engine, name, lambda real=real, name=name, **given: (calls.append(name), real(**given))[1])
    rng, commits = random.Random(len(algorithm)), []
    decoder.prefill({row: text(rng) for row in (2, 4, 1)})
    lengths = [decoder.lengths[row] for row in (4, 1)]
    result = decoder.step.decode(
        Batch([4, 1], lengths), on_commit=lambda new: commits.append((new.tolist(), list(calls)))
    )
    assert commits == [(result.to_host().new_seq_lens, calls[: calls.index("target") + 1])]


def test_who_computes_a_value() -> None:
    plan = read_plan(chain_plan())
    assert plan.producer(plan.output("new_seq_lens", "step").value).name == "verify_argmax"
    extend = plan.producer("extend_logits")
    assert isinstance(extend, External)
    assert extend.callback == "extend"
    with pytest.raises(PlanError, match="no node computes 'seq_lens'"):
        plan.producer("seq_lens")
    with pytest.raises(PlanError, match="prefill has no output 'new_seq_lens'"):
        plan.output("new_seq_lens", "prefill")
