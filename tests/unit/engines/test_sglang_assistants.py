"""Programs of FROZEN_KV_MTP as SGLang's decode steps, on stand-ins of its modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sglang_modules import SRT
from fakes.sglang_server import PROGRAM, Server, adapter
from programs import planned
from test_sglang_worker import BATCHES, PROMPTS, counted, drawing, run

from specc.engines.sglang.attention.prepare.reading import Reading
from specc.engines.sglang.attention.roles import Roles, roles_of
from specc.engines.sglang.attention.step_tables import Sizes, Tables
from specc.engines.sglang.kinds.assistants import ASSISTANTS
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
    assert "a tree with an assistant, which reads the target's keys and values, is not served" in misfits


class Prepared:
    """A backend that notes what it is asked to prepare, and of what drafts it is told."""

    def __init__(self) -> None:
        self.asked = list[tuple[str, Any]]()

    def init_forward_metadata(self, batch: Any) -> None:
        self.asked.append(("eager", batch.spec_info))

    def init_forward_metadata_out_graph(self, batch: Any, in_capture: bool = False) -> None:
        self.asked.append(("room" if in_capture else "out", batch.spec_info))

    def init_forward_metadata_in_graph(self, batch: Any) -> None:
        self.asked.append(("in", batch.spec_info))


@pytest.mark.parametrize("captured", [False, True])
def test_attention_is_prepared_for_the_text_alone(captured: bool) -> None:
    """Once a step, by the backend's own contract where steps are captured, with room that is made once."""
    backend: Any = Prepared()
    tables = Tables(torch.zeros(3, 9, dtype=torch.int32), Sizes(2, 3, 1, 4, 1, context=8))
    attention = Reading(Roles([backend], None, None, None), tables, captured=captured)
    batch = SimpleNamespace(batch_size=2, spec_info="drafts")
    for step in (0, 1, 2, 0, 1, 2):
        assert attention.draft(step, batch) is backend
        assert batch.spec_info == "drafts"
    once = ["out", "in"] if captured else ["eager"]
    assert backend.asked == [(what, None) for what in ["room"] * captured + once * 2]


def test_the_backend_of_an_assistant_is_a_copy_over_the_targets_pools() -> None:
    """It looks up slots of a second pool where the target's does. SGLang's own keeps its own pool."""
    own = SimpleNamespace(token_to_kv_pool="of 64 slots", use_sliding_window_kv_pool=False, buffer=[])
    verify = SimpleNamespace(token_to_kv_pool="the target's", use_sliding_window_kv_pool=True)
    context = SimpleNamespace(target_token_to_kv_pool="the target's")
    drafter = SimpleNamespace(draft_attn_backend=own, kv_context=context)
    target = SimpleNamespace(model_runner=SimpleNamespace(attn_backend=verify))
    roles = roles_of(SimpleNamespace(kind=ASSISTANTS, draft_worker=drafter, target_worker=target))
    (reading,) = roles.draft
    assert (reading.token_to_kv_pool, reading.use_sliding_window_kv_pool) == ("the target's", True)
    assert (own.token_to_kv_pool, own.use_sliding_window_kv_pool) == ("of 64 slots", False)
    assert reading.buffer is own.buffer
    assert (roles.container, roles.extend, roles.verify) == (None, None, verify)
