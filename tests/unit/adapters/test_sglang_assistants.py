"""Programs of FROZEN_KV_MTP as SGLang's decode steps, on stand-ins of its modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fakes.sglang_modules import SRT
from fakes.sglang_server import PROGRAM, Server, adapter
from programs import planned
from test_sglang_worker import BATCHES, PROMPTS, counted, drawing, run

from specc.runtime.plan.plan import Plan

Serve = Callable[..., Server]
DRAWN = {"verify": "target_only", "sampling": ["top_k", "top_p"]}


def plans_of(**keys: Any) -> tuple[Plan, ...]:
    """A program for SGLang, by shape, whose assistant is narrower than its target."""
    draft = {"vocab_size": 96, "hidden_size": 32, "target_hidden_size": 64}
    more = {"max_requests": 6, "buckets": [1, 2, 4], "target": {"vocab_size": 96}, "draft": draft, **keys}
    return planned("FROZEN_KV_MTP", engine="sglang", **more)


def plan_of(**keys: Any) -> Plan:
    """One of a single shape."""
    return plans_of(**keys)[0]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts servers."""
    for name in ("SPECC_PROGRAM", "SPECC_PROOF", "SPECC_FALLBACK", "SPECC_CAPTURE"):
        monkeypatch.delenv(name, raising=False)
    with SRT.starting(Server, PROGRAM) as start:
        yield start


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_texts_are_the_targets_own(serve: Serve, overlap: bool, steps: int) -> None:
    """By as many steps as the program takes that prefills by itself."""
    plan = plan_of(num_steps=steps)
    server = serve(plan, overlap=overlap)
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.steps == counted(plan, BATCHES)
    assert server.relay.written == (2 if overlap else 0)
    report = server.worker.steps.report()
    assert (report["served"], report["left"], report["proof"]) == (len(BATCHES), {}, "passed")


@pytest.mark.parametrize("overlap", [False, True])
def test_steps_may_be_either_ones(serve: Serve, overlap: bool) -> None:
    """SGLang's own takes the bonus token and the target's row from where the program's has left them, and back."""
    plan = plan_of()
    server = serve(plan, overlap=overlap)
    server.begin(PROMPTS)
    for place, rows in enumerate(BATCHES):
        server.worker.steps.switch(place % 2 == 0)
        server.decode(rows)
    server.settle()
    for row, request in server.requests.items():
        assert request.output_ids == server.own_text(row)
    assert server.steps == counted(plan, BATCHES)
    assert server.worker.steps.report()["left"] == {"switched off": len(BATCHES) // 2}


@pytest.mark.parametrize("overlap", [False, True])
def test_a_program_that_draws(serve: Serve, overlap: bool) -> None:
    """First tokens, too, of logits alone."""
    server, asked = serve(plan_of(**DRAWN), overlap=overlap), {"temperature": 1.1, "sampling_seed": 7, "top_k": 20}
    server.begin(PROMPTS, **asked)
    run(server, BATCHES, drawing(server, dict.fromkeys(PROMPTS, asked)))
    assert server.worker.steps.report()["left"] == {}


def test_shapes_of_several_depths(serve: Serve) -> None:
    """Without drafts, too, where the assistant does not run."""
    plans = plans_of(shapes=[{"num_steps": steps} for steps in (3, 1, 0)])
    server = serve(plans[0], others=plans[1:])
    server.begin(PROMPTS)
    for place, rows in enumerate(BATCHES):
        server.worker.steps.shapes.take(str(plans[place % 3].shape))
        server.decode(rows)
    server.settle()
    for row, request in server.requests.items():
        assert request.output_ids == server.own_text(row)


def test_a_tree_does_not_fit(serve: Serve) -> None:
    server = serve(plan_of(), speculative_eagle_topk=2)
    assert server.worker.steps is None
    misfits = adapter("server.fit").misfits({plan.shape: plan for plan in [server.plan]}, server.worker)
    assert "a tree of an assistant that reads the target's keys and values is not served" in misfits
