"""Programs on two ranks inside SGLang: the texts of one, and on both the same tokens by the same steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_fixtures import asked, side_by_side, started
from sglang_family import all_accounted_for, best_in_16_bits, in_16_bits, in_float32
from sglang_files import ON_GPU
from sglang_mixed import GRAMMARS, REGEX
from sglang_programs import build_program
from sglang_server import THROWN_OUT, Served, Variant, serve
from sglang_workload import PREAMBLES, TAILS, is_greedy, workload

CHAIN = Variant("STANDALONE", "standalone", overlap=True, program=True, ranks=2)
"""Its draft has one head of keys and values, which both ranks keep."""
TREE = Variant("EAGLE", "eagle", topk=4, num_draft_tokens=12, program=True, samples=True, ranks=2)
SHARDED_CHAIN = Variant("EAGLE3", "eagle3_part", overlap=True, program=True, ranks=2, sharded=True)
"""Its draft scores a part of the tokens."""
SHARDED_TREE = Variant(
    "EAGLE", "odd_eagle", topk=4, num_draft_tokens=12, program=True, ranks=2, sharded=True, target="odd"
)
"""Of a vocabulary that is padded, so that ranks do not have half of it each."""
LOOKED_UP = Variant("NGRAM", topk=2, num_draft_tokens=7, overlap=True, program=True, ranks=2, sharded=True)
"""Every rank looks drafts up in texts of its own, which are the same."""
SHARDED = (SHARDED_CHAIN, SHARDED_TREE, LOOKED_UP)
HEAD_CHAIN = Variant("EAGLE3", "eagle3_part", overlap=True, program=True, ranks=2, head="int8")
"""Of entries that are no tokens, of which ranks read others than they have."""
HEAD_TREE = replace(SHARDED_TREE, head="weights")
HEADS = (HEAD_CHAIN, HEAD_TREE)
"""Programs that compute the head of their draft, which ranks share out."""
BEGINNING = 56
"""Requests of the workload that other engines serve."""
SILENT = 44
DRAWN: list[dict[str, Any]] = [
    {"temperature": 1.0, "top_k": 50},
    {"temperature": 0.9, "top_p": 0.9, "frequency_penalty": 0.5},
    {"temperature": 1.2, "regex": REGEX},
]


def requests() -> list[dict[str, Any]]:
    """The beginning of the workload, and drawn requests, each twice without a seed and twice with the same one.

    Few of them want log-probabilities, for which a greedy program leaves all that runs beside them to SGLang, unless it
    hands them out.
    """
    made, more = workload(200, seed=1)[:BEGINNING], {"max_new_tokens": 12}
    for request in made[:SILENT]:
        request.pop("logprobs", None)
    for place, kind in enumerate(DRAWN):
        for seed in ({}, {}, {"sampling_seed": place}, {"sampling_seed": place}):
            text = PREAMBLES[place] + TAILS[place]
            made.append({"text": text, "sampling": kind | more | seed, "after": [BEGINNING - 1, 1000]})
    return made


@pytest.fixture(scope="module")
def engines(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Variant, Future[Served]]]:
    """The engines that tests of this run ask for, two at a time: most of it is that they start."""
    folder = tmp_path_factory.mktemp("ranks")

    def run(variant: Variant) -> Served:
        engine = variant.engine(models) | GRAMMARS
        wheel = build_program(engine, folder / f"{variant}-wheel", *variant.options)
        job = folder / str(variant)
        return serve(engine, requests(), job, overlap=variant.overlap, wheel=wheel, settings=THROWN_OUT)

    with side_by_side(2) as pool:
        yield started(pool, asked(request.session.items, "both"), run)


@pytest.fixture(scope="module", params=[CHAIN, TREE, *SHARDED, *HEADS], ids=str)
def both(request: pytest.FixtureRequest, engines: Mapping[Variant, Future[Served]]) -> Served:
    """What two ranks answered."""
    return engines[request.param].result()


def of_ranks(served: Served) -> list[Mapping[str, Any]]:
    by_rank = served.state["specc_testing"]["ranks"]
    assert len(by_rank) == 2
    return by_rank


@in_float32
def test_texts_of_ranks_are_those_without_speculation(both: Served, plain: Served) -> None:
    compared = 0
    for number, request in enumerate(both.requests[:BEGINNING]):
        output, whole = both.outputs[number], plain.outputs[number]
        if not is_greedy(dict(request)):
            continue
        if output["finish_reason"]["type"] == "abort":  # SGLang does not cut the last step where the text would end
            tokens = len(whole["token_ids"])
            assert output["token_ids"][:tokens] == whole["token_ids"][: len(output["token_ids"])], number
        else:
            assert (output["token_ids"], output["text"]) == (whole["token_ids"], whole["text"]), number
        compared += 1
    assert compared > 40


@in_16_bits
def test_tokens_of_ranks_are_the_targets_best_as_far_as_16_bits_tell(
    both: Served, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["both"].target == "target":
        best_in_16_bits(both)


def test_every_rank_ran_the_program(both: Served) -> None:
    first, second = (rank["specc"] for rank in of_ranks(both))
    assert first == second
    assert first["program"] == "specc_program_served"
    assert first["served"] > 20
    unserved = {"temperature": {"sampling", "a grammar"}, "logprobs": {"logprobs"}}
    assert set(first["left"]) == set().union(*(unserved[kind] for kind in unserved if kind not in first["sampling"]))
    assert both.log.count("specc_program_served runs the decode steps") == 2
    accepted = [output for output in both.outputs if output.get("spec_verify_ct")]
    tokens, steps = (sum(output[name] for output in accepted) for name in ("completion_tokens", "spec_verify_ct"))
    assert tokens / steps > 1.5


def test_ranks_emit_the_same_tokens(both: Served) -> None:
    """Whoever asked for what, a seed or none; and what was answered is what they emitted."""
    first, second = (rank["tokens"] for rank in of_ranks(both))
    assert first == second
    assert len(first) >= len(both.requests) - sum("abort_after" in request for request in both.requests)
    for number, output in enumerate(both.outputs[BEGINNING:], start=BEGINNING):
        assert first[f"{number:06}"][: len(output["token_ids"])] == output["token_ids"], number


def test_seeds_count_on_ranks(both: Served) -> None:
    """Of a program that samples: one seed is one text, and none is another one each time."""
    if "temperature" not in of_ranks(both)[0]["specc"]["sampling"]:
        return
    drawn = [output["token_ids"] for output in both.outputs[BEGINNING:]]
    for place in range(0, len(drawn), 4):
        without, another, seeded, again = drawn[place : place + 4]
        assert seeded == again
        assert without != another


@pytest.mark.skipif(ON_GPU, reason="a graph's launches pass by what counts them")
def test_logits_of_a_step_are_gathered_by_sglang_or_stay_with_their_ranks(
    both: Served, request: pytest.FixtureRequest
) -> None:
    """A program leaves the gather of sharded logits out, and of those that it computes, in its own steps alone.

    Verifications that are sharded, and others, take turns many times.
    """
    variant = request.node.callspec.params["both"]
    for rank in of_ranks(both):
        steps, left = rank["specc"]["served"] + 1, sum(rank["specc"]["left"].values())  # one was dry
        kept = {mode.removeprefix("kept "): times for mode, times in rank["logits"].items() if mode.startswith("kept")}
        gathered = {mode: times for mode, times in rank["logits"].items() if not mode.startswith("kept")}
        shared = variant.draft and variant in (*SHARDED, *HEADS)
        drafts = {"DECODE": 2 * steps, "DRAFT_EXTEND_V2": steps} if shared else {}
        assert kept == drafts | ({"TARGET_VERIFY": steps} if variant.sharded else {})
        assert gathered["TARGET_VERIFY"] == left + (0 if variant.sharded else steps)
        if drafts:
            assert gathered["DECODE"] == 2 * left
            assert gathered["DRAFT_EXTEND_V2"] == left
            assert gathered["EXTEND"] > 2 * BEGINNING / 8
        assert rank["turns"] >= 4 * variant.sharded


@in_float32
def test_log_probabilities_are_those_without_speculation(both: Served, plain: Served) -> None:
    if "logprobs" not in of_ranks(both)[0]["specc"]["sampling"]:
        return
    asked = [number for number in range(SILENT, BEGINNING) if both.requests[number].get("logprobs")]
    assert len(asked) > 1
    for number in asked:
        logprobs, expected = (served.outputs[number]["logprobs"] for served in (both, plain))
        assert [token for _, token in logprobs] == both.outputs[number]["token_ids"]
        assert [value for value, _ in logprobs] == pytest.approx([value for value, _ in expected], abs=1e-3), number


def test_slots_of_ranks_are_free_or_cached_at_the_end(both: Served) -> None:
    all_accounted_for(both.state["specc_testing"])
    assert sum(output["num_retractions"] for output in both.outputs) > 0


def test_a_sharded_program_that_does_not_fit(models: Path, tmp_path: Path) -> None:
    """A server that must run it ends, and says so, on every rank."""
    variant = Variant("EAGLE", "eagle", program=True, ranks=2, sharded=True)
    wheel = build_program(variant.engine(models), tmp_path / "wheel", *variant.options)
    engine = Variant("EAGLE", "odd_eagle", program=True, ranks=2, sharded=True, target="odd").engine(models)
    columns = "padded_vocab_size of the {} is 2048 in the program, 2112 in the server".format
    simulated = "SGLANG_SIMULATE_ACC_LEN changes whole rows of logits, and those of the program are sharded"
    with pytest.raises(RuntimeError, match="; ".join((columns("target"), columns("draft"), simulated))):
        serve(engine, requests()[:1], tmp_path / "job", wheel=wheel, settings={"SGLANG_SIMULATE_ACC_LEN": "2"})
