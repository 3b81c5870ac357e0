"""Families of models of their own kinds: experts, latent attention, pictures, windows in one KV pool and in two."""

from __future__ import annotations

from dataclasses import replace
from operator import eq

import pytest
from sglang_experts import experts_of, write_experts
from sglang_family import Family, FamilyTests, Running, in_float32, of_merged_weights
from sglang_files import BACKEND, NEWEST, ON_GPU, RANKS, VERSION
from sglang_latent import write_latent
from sglang_lora import ADAPTERS, with_adapters, write_adapted
from sglang_mixed import Oracle
from sglang_server import Variant, greedy
from sglang_sinks import WINDOW as SECOND_WINDOW
from sglang_sinks import write_sinks
from sglang_vision import with_pictures, write_vision
from sglang_windows import WINDOW, write_windows
from sglang_workload import without_aborts, workload

REQUESTS = 60
MANY = 200
SORTED = Variant("STANDALONE", "guesser", target="sorter", program=True)
SORTED_TREE = replace(SORTED, topk=3, num_draft_tokens=8)
EXPERTS = Family(
    Variant(target="sorter"),
    [
        replace(SORTED, samples=True),
        replace(SORTED_TREE, overlap=True),
        replace(SORTED, overlap=True, ranks=2, experts=True),
        replace(SORTED_TREE, ranks=2, experts=True),
    ],
    write_experts,
    lambda _: [request | {"experts": True} for request in without_aborts(workload(REQUESTS, seed=6))],
    arguments={"enable_return_routed_experts": True},
    settings={"SPECC_TEST_PAD": "1"},
)
"""Tokens go to experts, which requests are told: on one rank, and shared out over two. Every step of a program has rows
of padding, which go to no expert."""

LATENT_ALONE = Variant(target="latent", attention="" if ON_GPU else "fa3")
LATENT_OWN = replace(LATENT_ALONE, algorithm="EAGLE", draft="latent")
LATENT = Family(
    LATENT_ALONE,
    [
        replace(LATENT_OWN, program=True, overlap=True),
        replace(LATENT_OWN, program=True, page=16),
        *[replace(LATENT_OWN, program=True, overlap=True, topk=3, num_draft_tokens=8)] * ON_GPU,
    ],
    lambda folder: write_latent(folder / "latent"),
    lambda _: without_aborts(workload(REQUESTS, seed=2)),
    own=None if ON_GPU else LATENT_OWN,
    pools={"EAGLE": ["MLATokenToKVPool", "MLATokenToKVPool"]},
)
"""Latent attention (MLA), where a module of multi-token prediction drafts: chains under FlashAttention 3 on a CPU, on a
GPU trees, too, under triton, since other kernels have no latent rows so narrow."""
LATENT_HERE = [LATENT] * (not ON_GPU or BACKEND == "triton")

SEEN = Variant("STANDALONE", "guesser", target="seer", program=True, samples=True)
VISION = Family(
    Variant(target="seer"),
    [replace(SEEN, overlap=True), replace(SEEN, topk=3, num_draft_tokens=8)],
    write_vision,
    lambda models: with_pictures(without_aborts(workload(REQUESTS, seed=3)), models),
    arguments={"chunked_prefill_size": 512, **({"mm_attention_backend": "triton_attn"} if ON_GPU else {})},
    left=frozenset(),
)
"""Target and draft see pictures: texts behind some, and without any. SGLang's own prefill of a draft ends the server
where a picture is in two chunks; nothing is left to its own step, which does so too where it is run ahead."""

SHORT = Variant("STANDALONE", "shorter", target="short", program=True)
WINDOWS = Family(
    Variant(target="short"),
    [
        *[replace(SHORT, overlap=True), replace(SHORT, attention="fa3", overlap=True)] * (not ON_GPU),
        replace(SHORT, attention="fa3", page=16),
    ],
    write_windows,
    lambda _: without_aborts(workload(REQUESTS, seed=5)),
    pools={"STANDALONE": ["MHATokenToKVPool", "MHATokenToKVPool"]},
)
"""Layers that see a window of the text alone, of Gemma 3's kind, where both models have such: chains. With pages of one
token SGLang's own step ends on a GPU."""

OSS = Variant(target="oss", attention="" if VERSION == NEWEST else "fa3")
"""0.5.22 reads slots of the first pool in the second on a CPU's own backend."""
OSS_HEAD = Variant("EAGLE3", "oss-eagle3", target="oss", program=True, overlap=True)
OSS_DRAFT = Variant("STANDALONE", "small-oss", target="oss", program=True, overlap=True, attention="fa3")
TWO_POOLS = Family(
    OSS,
    [*[OSS_HEAD] * (VERSION == NEWEST), OSS_DRAFT, replace(OSS_HEAD, attention="fa3", page=16)],
    write_sinks,
    lambda _: workload(MANY, seed=5),
    arguments={"swa_full_tokens_ratio": 0.5},
    pools={"STANDALONE": ["SWAKVPool", "SWAKVPool"], "EAGLE3": ["SWAKVPool", "MHATokenToKVPool"]},
    accepted=1.4,
)
"""Targets of gpt-oss's kind, whose windows have a KV pool of their own, with a head and with a draft of their kind. The
second pool has fewer slots than a long prompt has tokens, and some requests are aborted."""

ADAPTED = Variant("EAGLE", "eagle", target="adapted", program=True)
LORA = Family(
    Variant(target="adapted"),
    [replace(ADAPTED, overlap=True), replace(ADAPTED, topk=3, num_draft_tokens=8, samples=True)],
    write_adapted,
    lambda _: with_adapters(workload(MANY, seed=7), seed=7),
    adapters=[*ADAPTERS],
    settings={"SPECC_TEST_PAD": "1"},
    accepted=1.3,
)
"""Requests with one of three adapters and without any, mixed in a batch. The head drafts without. Every step of a
program has rows of padding, of which nothing is said."""

FAMILIES = (EXPERTS, *LATENT_HERE, VISION, WINDOWS, TWO_POOLS, LORA)
PROGRAMS = [(family, program) for family in FAMILIES for program in family.programs if program.ranks <= RANKS]
COMPARED = [*PROGRAMS, *[(LATENT, LATENT_OWN)] * (not ON_GPU)]
"""SGLang's own step among them, where it is under stand-ins of attention that nobody else tests."""
OWN = [(family, program, family.own_of(program)) for family, program in PROGRAMS]
each_program = pytest.mark.parametrize(("family", "engine"), PROGRAMS, ids=str)


@in_float32
@pytest.mark.parametrize("family", [LATENT, WINDOWS, TWO_POOLS], ids=str)
def test_without_speculation_texts_are_the_targets_own(family: Family, engines: Running) -> None:
    """Against transformers, every third one: so the stand-ins of attention are right."""
    oracle, answers = Oracle(engines.models / family.alone.target), list(greedy(engines.of(family.alone)))
    for number, request, output in answers[::3]:
        assert oracle.follows(request["text"], output["token_ids"]), number


@in_float32
@pytest.mark.parametrize("family", [LORA], ids=str)
def test_without_speculation_texts_are_those_of_merged_weights(family: Family, engines: Running) -> None:
    of_merged_weights(family, engines)


@pytest.mark.parametrize("family", [WINDOWS], ids=str)
def test_texts_are_far_longer_than_a_window(family: Family, engines: Running) -> None:
    assert max(output["prompt_tokens"] for _, _, output in greedy(engines.of(family.alone))) > 10 * WINDOW


class TestFamilies(FamilyTests):
    compared, beside = COMPARED, OWN


@each_program
def test_the_program_ran_the_steps_that_it_serves(family: Family, engine: Variant, engines: Running) -> None:
    """On every rank as many, with the same tokens; under fa3 SGLang prepared attention for the others alone."""
    seen = engines.of(engine).state["specc_testing"]
    assert len(seen["ranks"]) == engine.ranks
    for rank in seen["ranks"]:
        assert rank["specc"]["served"] > 30
        assert rank["specc"]["left"].keys() <= family.left
        assert rank["tokens"] == seen["ranks"][0]["tokens"]
        assert rank["specc"] == seen["ranks"][0]["specc"]
    if engine.attention == "fa3" and not ON_GPU:
        assert seen["prepared"]["TARGET_VERIFY"] == sum(seen["ranks"][0]["specc"]["left"].values()) > 0
    if family.pools:
        assert seen["pools"] == family.pools[engine.algorithm]


@pytest.mark.parametrize("family", [TWO_POOLS], ids=str)
def test_texts_are_longer_than_the_second_pool(family: Family, engines: Running) -> None:
    alone = engines.of(family.alone)
    _, second = alone.state["specc_testing"]["slots"]
    assert max(output["prompt_tokens"] for output in alone.outputs) > max(second["all"], 10 * SECOND_WINDOW)


@pytest.mark.parametrize(("family", "engine"), [(TWO_POOLS, program) for program in TWO_POOLS.programs], ids=str)
def test_some_requests_are_aborted(family: Family, engine: Variant, engines: Running) -> None:
    """The dry step went over both pools before."""
    served = engines.of(engine)
    assert served.state["specc"]["proof"] == "passed"
    assert sum(output["finish_reason"]["type"] == "abort" for output in served.outputs) > 5


@pytest.mark.parametrize(("family", "engine"), [each for each in PROGRAMS if each[0] is EXPERTS], ids=str)
def test_experts_are_those_without_speculation(family: Family, engine: Variant, engines: Running) -> None:
    """Of every token of a text that is the same, of steps that were left to SGLang, too. 16 bits have near ties."""
    served, alone = engines.of(engine), engines.of(family.alone)
    same: list[bool] = []
    for number, _, output in greedy(served):
        experts, expected = experts_of(output), experts_of(alone.outputs[number])
        assert len(experts) == output["prompt_tokens"] + output["completion_tokens"] - 1
        if output["token_ids"] == alone.outputs[number]["token_ids"]:
            same += map(eq, experts, expected)
    assert len(same) > 1000
    assert sum(same) > 0.98 * len(same) if ON_GPU else all(same)


@pytest.mark.parametrize(("family", "engine"), [(VISION, program) for program in VISION.programs], ids=str)
def test_much_is_written_behind_pictures(family: Family, engine: Variant, engines: Running) -> None:
    served = engines.of(engine)
    answers = zip(served.requests, served.outputs, strict=True)
    assert sum(output["completion_tokens"] for request, output in answers if "pictures" in request) > 300
