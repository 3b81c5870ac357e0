"""Programs with a module for each step in SGLang, on stand-ins of its modules: texts, drafts, and who reads what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes.sglang_modules import SETTINGS
from fakes.sglang_server import SharedOutput, adapter
from test_sglang_fit import misfits, of, two_pools
from test_sglang_worker import ALL, BATCHES, DRAWS, PROMPTS, Serve, counted, drawing, plan_of, run, serve

from specc.engines.sglang.kinds.several_modules import SEVERAL_MODULES
from specc.runtime.step import Step

__all__ = ["serve"]
MODULES = "MULTI_LAYER_EAGLE"
overlapping = pytest.mark.parametrize("overlap", [False, True])


def test_all_that_modules_touch_is_there(serve: Serve) -> None:
    serve(plan_of(MODULES))
    seam = adapter("seam")
    assert seam.there(SEVERAL_MODULES.absent)


@overlapping
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("keys", [(), (("num_steps", 1),), (("num_steps", 2),)], ids=["3", "1", "2"])
def test_texts_are_the_targets_own(serve: Serve, keys: Any, chained: bool, overlap: bool) -> None:
    """And drafts those of the modules, each of which has attention of its own, with what it is to read."""
    plan = plan_of(MODULES, *keys)
    server = serve(plan, overlap=overlap, chained=chained)
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.steps == counted(plan, BATCHES)
    assert max(max(counts) for counts in server.steps.values()) > 1, "drafts are accepted"
    assert server.relay.written == (2 if overlap else 0), "of the prefill; steps are where the relay has them already"
    report = server.worker.steps.report()
    assert (report["served"], report["left"], report["proof"]) == (len(BATCHES), {}, "passed")


@overlapping
def test_steps_of_either_go_on_where_the_other_stopped(serve: Serve, overlap: bool) -> None:
    """All drafts of the next step are handed over, and no hidden states."""
    plan = plan_of(MODULES)
    server = serve(plan, overlap=overlap)
    server.begin({row: PROMPTS[row] for row in (3, 1, 2)})
    server.begin({6: PROMPTS[6]}, min_new_tokens=2)
    run(server, BATCHES)
    assert server.steps == counted(plan, BATCHES)
    assert server.worker.steps.tally.left == {"min_new_tokens": sum(6 in rows for rows in BATCHES)}


@overlapping
def test_texts_that_are_drawn(serve: Serve, overlap: bool) -> None:
    server = serve(plan_of(MODULES, *DRAWS), overlap=overlap)
    asked: dict[int, dict[str, Any]] = {
        3: {"sampling_seed": 7, "temperature": 1.5, "top_k": ALL}, 1: {}, 2: {"sampling_seed": -3, "top_k": 20},
        6: {"sampling_seed": 9, "temperature": 0.7, "top_k": ALL, "top_p": 0.9},
    }  # fmt: skip
    for row in PROMPTS:
        server.begin({row: PROMPTS[row]}, **asked[row])
    run(server, BATCHES, drawing(server, asked))
    assert server.worker.steps.tally.left == {}


def test_tables_of_the_relay_have_all_drafts_of_a_step(serve: Serve) -> None:
    server = serve(plan_of(MODULES), overlap=True)
    server.begin(PROMPTS)
    server.decode([3, 1])
    relay = server.relay
    assert relay.topk_index_buf.shape[1] == relay.topk_p_buf.shape[1] == server.plan.size("S") == 3
    assert not relay.need_hidden_states
    state = server.worker.steps.state
    assert state.blank(2).topk_index.shape == state.of(torch.tensor([3, 1])).topk_p.shape == (2, 3)


def test_attention_of_every_module_is_planned(serve: Serve) -> None:
    """Where the host plans attention: by the same lengths, each by itself."""
    server = serve(plan_of(MODULES))
    (attention,) = server.worker.steps._attention.values()
    assert len(attention._backends) == 1 + 2  # verification and the first module share one
    planned = list[tuple[Any, list[int]]]()
    for backend in attention._backends:
        backend.plan = lambda rows, lengths, backend=backend: planned.append((backend, [*lengths]))
    attention.plan(2, [5, 4])
    assert planned == [(backend, [5, 4]) for backend in attention._backends]


@overlapping
@pytest.mark.parametrize("chained", [False, True])
def test_forwards_leave_logits_where_sglangs_graphs_have_them(
    serve: Serve, overlap: bool, chained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of all modules in one buffer, of which each is read before the next one runs. Graphs are left out here."""
    monkeypatch.setattr(Step, "capture", lambda *_: None)
    shared = SharedOutput(rows=16)
    server = serve(plan_of(MODULES), overlap=overlap, shared=shared, chained=chained)
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.steps == counted(server.plan, BATCHES)
    assert server.worker.steps.report()["capture"] == "graph"
    assert shared.given == {96}


@pytest.mark.parametrize("chained", [False, True])
def test_modules_that_read_what_others_made_are_captured_in_one_graph(
    serve: Serve, chained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(plan_of(MODULES), chained=chained)
    monkeypatch.setenv("SPECC_CAPTURE", "segments")
    capturing = adapter("binding").capturing
    if not chained:
        assert capturing(server.worker) == "none"
        return
    message = "SPECC_CAPTURE=segments is for modules that read hidden states of the target alone"
    with pytest.raises(adapter("binding").ServerError, match=message):
        capturing(server.worker)


def test_a_module_has_a_layer_with_a_window_alone(serve: Serve) -> None:
    """In two pools with the map of the target's; a head has no such layer, nor has a target."""
    for algorithm, expected in ((MODULES, "swa"), ("EAGLE", "SWAKVPool with slots of another kind")):
        server = serve(plan_of(algorithm))
        for role, pool in (("target", two_pools()), ("draft", two_pools(full_layer_nums=0))):
            of(role, "token_to_kv_pool", pool)(server)
        assert adapter("server.facts").facts(server.worker).draft.cache == expected
        of("target", "token_to_kv_pool", two_pools(full_layer_nums=0))(server)
        assert adapter("server.facts").facts(server.worker).target.cache == "SWAKVPool with slots of another kind"


MISFITS = {
    "a tree of several modules is not served": ("spec", "speculative_eagle_topk", 2),
    "LoRA beside a draft of several modules is not served": ("lora", "enable_lora", True),
    "a draft of several modules behind a server that prefills is not served": (
        "disagg",
        "disaggregation_mode",
        "decode",
    ),
    "algorithm is MULTI_LAYER_EAGLE in the program, EAGLE3 of several modules in the server": (
        "spec",
        "speculative_algorithm",
        "EAGLE3",
    ),
}


@pytest.mark.parametrize(("misfit", "change"), MISFITS.items(), ids=[*MISFITS])
def test_what_is_not_served_with_modules_is_named(serve: Serve, misfit: str, change: tuple[str, str, Any]) -> None:
    server = serve(plan_of(MODULES))
    assert misfits(server) == []
    block, name, value = change
    setattr(getattr(SETTINGS, block), name, value)
    assert misfit in misfits(server)


def test_a_program_of_another_kind_fits_no_server_with_modules(serve: Serve) -> None:
    server = serve(plan_of(MODULES))
    other = plan_of("EAGLE")
    [problem] = adapter("server.fit").misfits({other.shape: other}, server.worker)
    assert problem == "algorithm is EAGLE in the program, MULTI_LAYER_EAGLE in the server"
