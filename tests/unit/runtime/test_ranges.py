"""Nodes in NVTX ranges, on a torch.cuda.nvtx that only writes down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from chains import Oracle, make_engine, start
from fakes.cuda import FakeBackend, FakeCuda, FakeNvtx
from fakes.drafts import Engine
from fakes.plans import chain_plan, program_of
from test_step import CPU, decode

from specc.runtime import program as program_module
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.nodes import External
from specc.runtime.program import Program
from specc.runtime.step import Step

PROMPTS = {3: [4, 9, 2], 1: [7, 1]}


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> FakeNvtx:
    """Stands in for torch.cuda.nvtx."""
    fake = FakeNvtx()
    fake.install(monkeypatch)
    return fake


def bind(
    engine: Engine | None = None, backend: Any = None, *, nvtx: bool = False, capture: bool = False
) -> tuple[Step, dict[int, Oracle]]:
    """A step whose prompts were prefilled, and what it must decode."""
    plan = chain_plan()
    engine = engine or make_engine(plan)
    step = Step(read_plan(plan), backend or ReferenceBackend(), CPU, engine, engine.table, nvtx=nvtx)
    if capture:
        step.capture("segments")
    return step, start(step, engine, PROMPTS, 3)


def test_every_node_has_its_range(nvtx: FakeNvtx) -> None:
    plan = read_plan(chain_plan())
    step, oracles = bind(nvtx=True)
    assert nvtx.take() == [node.name for node in plan.nodes("prefill")]
    decode(step, oracles, list(PROMPTS))
    assert nvtx.take() == [node.name for node in plan.nodes("step")]
    assert nvtx.open == []


def test_nobody_asked(nvtx: FakeNvtx) -> None:
    step, oracles = bind()
    decode(step, oracles, list(PROMPTS))
    assert nvtx.take() == []


def test_a_forward_that_raises_closes_its_range(nvtx: FakeNvtx) -> None:
    engine = make_engine(chain_plan())
    step, oracles = bind(engine, nvtx=True)
    nvtx.take()

    def fail(**operands: object) -> None:
        raise ZeroDivisionError

    engine.target = fail  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        decode(step, oracles, list(PROMPTS))
    assert nvtx.take()[-1] == "target"
    assert nvtx.open == []


def test_between_segments_only_forwards_are_called(nvtx: FakeNvtx, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    step, oracles = bind(backend=FakeBackend(cuda), capture=True, nvtx=True)
    nvtx.take()
    decode(step, oracles, list(PROMPTS))
    names = nvtx.take()
    assert step.replays.replayed
    plan = read_plan(chain_plan())
    moved = {name for segment in plan.segments if segment.name in step.replays.moved for name in segment.nodes}
    assert names == [node.name for node in plan.nodes("step") if isinstance(node, External) or node.name in moved]


def test_only_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    bound = SimpleNamespace(capture=lambda how: None)
    monkeypatch.setattr(program_module, "Step", lambda *arguments, nvtx, **shared: (asked.append(nvtx), bound)[1])
    monkeypatch.setattr(program_module, "allocate", lambda plans, device: None)
    plan = read_plan(chain_plan())
    gpu = Program((plan,), program_of(plan).manifest, torch.device("cuda", 0), ReferenceBackend())
    for program in (gpu, program_of(plan)):
        for wanted in (True, False):
            program.bind(SimpleNamespace(), torch.zeros(1), nvtx=wanted)
    assert asked == [True, False, False, False]
