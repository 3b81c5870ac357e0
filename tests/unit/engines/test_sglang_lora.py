"""Adapters of requests (LoRA) in a program's forwards on stand-ins of SGLang's modules, which check what is said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sglang_lora import BatchInfo, LoRAManager
from fakes.sglang_modules import SETTINGS
from fakes.sglang_server import Server, adapter
from test_sglang_shapes import MIXED, plans_of
from test_sglang_worker import BATCHES, PROMPTS, QLEN, Serve, plan_of, run, serve

from specc.runtime.step import Step

__all__ = ["serve"]
ASKED = {3: "terse", 1: None, 6: "vivid", 2: "terse"}


def manager(server: Server) -> LoRAManager:
    found = server.worker.target_worker.model_runner.lora_manager
    assert isinstance(found, LoRAManager)
    return found


def begin(server: Server) -> None:
    """Prefill requests, each with its adapter."""
    for row, prompt in PROMPTS.items():
        server.begin({row: prompt}, lora_id=ASKED[row])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("algorithm", "keys"), [("EAGLE", ()), ("EAGLE", QLEN), ("DFLASH", ())])
def test_a_step_has_the_adapters_of_its_requests(serve: Serve, algorithm: str, keys: Any, overlap: bool) -> None:
    """Also behind a prefill of others, and a step of SGLang's own. Blocks are drafted by layers without any."""
    server = serve(plan_of(algorithm, *keys), overlap=overlap, adapters=True)
    begin(server)
    run(server, BATCHES)
    server.begin({4: [8, 8]}, lora_id="wry")
    run(server, [[4, 3], [1]])
    assert server.worker.steps.report()["served"] == len(BATCHES) + 2
    asked = ASKED | {4: "wry"}
    steps = [[asked[row] for row in rows] for rows in [*BATCHES, [4, 3], [1]]]
    assert [names for names in manager(server).seen if any(names)] == [names for names in steps if any(names)]
    assert manager(server).loaded == {None}, "of the last batch alone"


def test_rows_of_padding_have_none(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of them, so that none takes the place of an adapter."""
    decode = Step.decode
    monkeypatch.setattr(Step, "decode", lambda step, batch, **how: decode(step, batch, **{"at_least": 4} | how))
    server = serve(plan_of("EAGLE"), adapters=True)
    begin(server)
    server.decode([3, 6])
    run(server, [])
    assert manager(server).seen[-1] == ["terse", "vivid"]
    assert manager(server).loaded == {"terse", "vivid"}


def test_adapters_that_the_scheduler_loads_are_there(serve: Serve) -> None:
    server = serve(plan_of("EAGLE"), adapters=True)
    SETTINGS.lora.enable_lora_overlap_loading = True
    begin(server)
    run(server, BATCHES)
    assert server.worker.steps.report()["served"] == len(BATCHES)


def test_several_shapes_are_not_served(serve: Serve) -> None:
    """SGLang's memory of a verification has one number of tokens per request."""
    plans = plans_of(MIXED, mask="qlen")
    server = serve(plans[0], others=plans[1:], adapters=True)
    assert server.worker.steps is None
    by_shape = {plan.shape: plan for plan in plans}
    assert adapter("server.fit").misfits(by_shape, server.worker) == ["several shapes are not served with LoRA"]


def test_a_graph_has_what_was_said_of_its_bucket(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """All buckets are warmed up before the first is captured, while which nothing can be said."""
    server = serve(plan_of("EAGLE"), adapters=True)
    lora, nodes = manager(server), 4
    adapters = adapter("parts.lora").Adapters(server.worker.target_worker.model_runner)
    info = SimpleNamespace(draft_token_num=nodes)
    batches = {rows: SimpleNamespace(batch_size=rows, spec_info=info) for rows in (2, 1)}
    capturing = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    written = lora.lora_backend.batch_info
    adapters.give(batches[1])
    assert lora.lora_backend.batch_info is written, "a step that runs has said it"
    with adapters.capturing():
        for batch in batches.values():
            adapters.give(batch)
        capturing[0] = True
        monkeypatch.setattr(lora, "prepare_lora_batch", None)
        for rows, batch in batches.items():
            adapters.give(batch)
            assert lora.lora_backend.batch_info == BatchInfo([None] * rows, [nodes] * rows)
    written = lora.lora_backend.batch_info
    adapters.give(batches[2])
    assert lora.lora_backend.batch_info is written


def test_captures_are_announced(serve: Serve) -> None:
    """While steps are captured, and not behind them."""
    server = serve(plan_of("EAGLE"), adapters=True)
    binding, parts = adapter("binding"), server.worker.steps._parts
    capturing: list[tuple[str, bool]] = []
    step = SimpleNamespace(capture=lambda how: capturing.append((how, parts.adapters._captures)))
    binding.Bound(step, "segments", {}, {}, parts).capture()
    assert capturing == [("segments", True)]
    assert not parts.adapters._captures
