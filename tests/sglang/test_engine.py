"""SGLang's own speculation on a CPU: the texts of an engine without, and nothing lost, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from sglang_family import (
    accepts_as_much,
    all_accounted_for,
    best_in_16_bits,
    in_16_bits,
    in_float32,
    same_logprobs,
    same_texts,
)
from sglang_files import ON_GPU
from sglang_mixed import Oracle
from sglang_programs import plugin_wheel
from sglang_server import PLAIN, PREFILL_CHUNK, Served, Variant, accept_length, greedy, serve

SPECULATING = [
    Variant("STANDALONE", "standalone"),
    Variant("STANDALONE", "standalone", topk=4, num_draft_tokens=12, overlap=True),
    Variant("EAGLE", "eagle", overlap=True),
    Variant("EAGLE", "eagle", topk=4, num_draft_tokens=12),
    Variant("EAGLE3", "eagle3", overlap=True),
    Variant("EAGLE3", "eagle3", topk=4, num_draft_tokens=12),
    Variant("EAGLE3", "eagle3_part", topk=4, num_draft_tokens=12),
    Variant("EAGLE", "eagle", overlap=True, token_map=True),
    Variant("EAGLE", "eagle", num_steps=2, num_draft_tokens=3, overlap=True, adaptive=True),
]
PROGRAMS = [
    Variant("STANDALONE", "standalone", overlap=True, program=True),
    Variant("STANDALONE", "standalone", topk=4, num_draft_tokens=12, program=True),
    Variant("EAGLE", "eagle", program=True),
    Variant("EAGLE", "eagle", topk=4, num_draft_tokens=12, overlap=True, program=True, samples=True),
    Variant("EAGLE3", "eagle3", overlap=True, program=True),
    Variant("EAGLE3", "eagle3", topk=4, num_draft_tokens=12, overlap=True, program=True),
    Variant("EAGLE3", "eagle3_part", topk=4, num_draft_tokens=12, program=True),
    Variant("EAGLE", "eagle", overlap=True, program=True, token_map=True),
]
FLASH_CHAIN = Variant("EAGLE", "eagle", overlap=True, attention="fa3")
FLASH_TREE = replace(FLASH_CHAIN, topk=4, num_draft_tokens=8, num_steps=5)
"""Of the shape that SGLang takes for a Llama where none is written."""
FLASH = [
    FLASH_CHAIN,
    replace(FLASH_CHAIN, page=16),
    FLASH_TREE,
    replace(FLASH_TREE, page=16, overlap=False),
    Variant("EAGLE3", "eagle3", attention="fa3"),
]
"""FlashAttention 3, of which operators are stand-ins and metadata is what a GPU gets."""
SPECULATING += FLASH
PROGRAMS += [replace(variant, program=True) for variant in FLASH]
SHAPED = [
    Variant("STANDALONE", "standalone", overlap=True, program=True, shapes="3,1,0"),
    Variant("EAGLE", "eagle", topk=4, num_draft_tokens=12, program=True, shapes="3x4x12,2x2x5,3,1,0"),
    replace(FLASH_TREE, program=True, samples=True, page=16, shapes="5x4x8,3x2x6,5,3,0"),
]
"""Programs of several shapes, which change at every step."""
ADAPTIVE = [
    Variant("EAGLE", "eagle", num_steps=2, num_draft_tokens=3, overlap=True, program=True, adaptive=True),
    Variant("EAGLE3", "eagle3", num_steps=1, num_draft_tokens=2, program=True, adaptive=True),
    Variant("EAGLE", "eagle", num_steps=5, num_draft_tokens=6, program=True, attention="fa3", page=16, adaptive=True),
]
"""Programs of several shapes, which change as SGLang has it by what is accepted and by the size of batches."""
HEADS = [
    Variant("STANDALONE", "standalone", overlap=True, program=True, head="weights"),
    Variant("EAGLE", "eagle", overlap=True, program=True, token_map=True, head="int8"),
    Variant("EAGLE3", "eagle3_part", topk=4, num_draft_tokens=12, program=True, head="weights"),
]
"""Programs that compute the head of their draft."""
RUN = [*PROGRAMS, *SHAPED, *ADAPTIVE, *HEADS]
"""All engines in which a program runs."""
speculating = pytest.mark.parametrize("variant", [*SPECULATING, *RUN], ids=str)
LEAST_ACCEPTED = 1.5
"""Tokens per verification of any of these drafts; 1 would be a draft that is always wrong."""


@in_float32
def test_without_speculation_texts_are_the_targets_own(plain: Served) -> None:
    """Against transformers, every third one: each token is the most probable after the prompt and those before it."""
    oracle = Oracle()
    for number, request, output in list(greedy(plain))[::3]:
        assert output["prompt_tokens"] == len(oracle.tokens(request["text"]))
        assert oracle.follows(request["text"], output["token_ids"]), number


@in_float32
@speculating
def test_texts_are_those_without_speculation(variant: Variant, served: Served, plain: Served) -> None:
    same_texts(served, plain)


@in_16_bits
@pytest.mark.parametrize("variant", [PLAIN, *SPECULATING, *RUN], ids=str)
def test_tokens_are_the_targets_best_as_far_as_16_bits_tell(variant: Variant, served: Served) -> None:
    best_in_16_bits(served)


@in_float32
@speculating
def test_logprobs_are_those_without_speculation(variant: Variant, served: Served, plain: Served) -> None:
    same_logprobs(served, plain)


@speculating
def test_drafts_are_accepted(variant: Variant, served: Served) -> None:
    """Some steps of several shapes draft nothing; how many of SGLang's own choice hangs on how fast requests come."""
    least = 1.1 if variant.adaptive else 1.2 if variant.changes_to else LEAST_ACCEPTED
    assert accept_length(served) > least


@pytest.mark.parametrize("variant", [PLAIN, *SPECULATING, *RUN], ids=str)
def test_every_slot_and_row_is_free_or_cached_at_the_end(variant: Variant, served: Served) -> None:
    all_accounted_for(served.state["specc_testing"])


@pytest.mark.parametrize("variant", [PLAIN, *SPECULATING, *RUN], ids=str)
def test_everything_that_was_meant_to_happen_happened(variant: Variant, served: Served) -> None:
    state, outputs = served.state["specc_testing"], served.outputs
    assert state["overlap"] == variant.overlap
    assert (state["worker"] is None) == (variant.algorithm is None)
    assert sum(output["num_retractions"] for output in outputs) > 0
    assert sum(output["cached_tokens"] for output in outputs) > 1000
    assert max(output["prompt_tokens"] for output in outputs) > 3 * PREFILL_CHUNK
    stopped = [output for output in outputs if isinstance(output["finish_reason"].get("matched"), str)]
    assert len(stopped) > 5
    aborted = [output for output in outputs if output["finish_reason"]["type"] == "abort"]
    assert (len(aborted) > 5) == (variant != PLAIN)


@pytest.mark.parametrize("variant", ADAPTIVE, ids=str)
def test_steps_of_all_candidates_ran(variant: Variant, served: Served) -> None:
    """Of some few, since batches of one request are rare here."""
    steps = served.state["specc"]["served_by_shape"]
    assert set(steps) == variant.changes_to
    assert sorted(steps.values())[-2] > 20


@pytest.mark.parametrize("variant", SHAPED, ids=str)
def test_steps_of_all_shapes_ran(variant: Variant, served: Served) -> None:
    steps = served.state["specc"]["served_by_shape"]
    assert set(steps) == variant.changes_to
    assert min(steps.values()) > 20


@pytest.mark.parametrize("variant", RUN, ids=str)
def test_the_program_ran_the_steps_that_it_serves(variant: Variant, served: Served) -> None:
    """And SGLang those with a request that the program does not serve, in the same server.

    For these alone it prepares FlashAttention as it does on a CPU, where that is noted: the program's are prepared as
    on a GPU.
    """
    state = served.state["specc"]
    assert state["program"] == "specc_program_served"
    assert state["served"] > 100
    assert set(state["left"]) == (set() if variant.samples else {"logprobs", "sampling"})
    assert "specc_program_served runs the decode steps" in served.log
    if variant.attention == "fa3" and not ON_GPU:
        assert served.state["specc_testing"]["prepared"].get("TARGET_VERIFY", 0) == sum(state["left"].values())


def own(program: Variant) -> Variant:
    """The engine that drafts the same without a program."""
    if program.attention:
        return replace(program, program=False)
    shape = program.draft, program.topk, program.token_map
    return next(variant for variant in SPECULATING if (variant.draft, variant.topk, variant.token_map) == shape)


@pytest.mark.parametrize(("variant", "own"), [(program, own(program)) for program in PROGRAMS], ids=map(str, PROGRAMS))
def test_the_program_accepts_as_much_as_sglangs_own_step(
    variant: Variant, own: Variant, served: Served, running: Mapping[Variant, Future[Served]]
) -> None:
    accepts_as_much(served, running[own].result())


LEAKY = """
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

def register():
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.process_batch_result", leak, HookType.AROUND)

def leak(process_batch_result, scheduler, *operands):
    scheduler.token_to_kv_pool_allocator.alloc(1)
    return process_batch_result(scheduler, *operands)
"""


def test_a_leak_in_a_wheel_fails_the_job(models: Path, tmp_path: Path) -> None:
    """So a wheel's plugin runs in the engine, and what it loses is seen."""
    wheel = plugin_wheel(LEAKY, tmp_path)
    requests = [{"text": "import os", "sampling": {"temperature": 0, "max_new_tokens": 4}}]
    with pytest.raises(RuntimeError, match="Mem Leak Detected"):
        serve(PLAIN.engine(models), requests, tmp_path / "job", wheel=wheel)
