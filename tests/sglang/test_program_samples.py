"""A program that samples inside SGLang: its texts are those of their seeds, its distribution is the target's."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_fixtures import asked, side_by_side, started
from sglang_draws import BIAS, CROWD, TEXTS, short, texts
from sglang_files import AT_A_TIME
from sglang_mixed import AGAIN, COUNT, GRAMMARS, SCHEMA, Oracle, is_greedy, is_penalized, is_restricted, mixed
from sglang_programs import build_program
from sglang_server import PLAIN, SERVER, THROWN_OUT, Served, Variant, serve
from sglang_workload import TAILS
from text_statistics import surprise

CHAIN = Variant("STANDALONE", "standalone", overlap=True, program=True, samples=True)
TREE = Variant("EAGLE", "eagle", topk=4, num_draft_tokens=12, program=True, samples=True)
BLOCKS = Variant("DFLASH", "dflash", target="masked", overlap=True, program=True, samples=True)
LOOK_UPS = Variant("NGRAM", num_draft_tokens=5, overlap=True, program=True, samples=True)


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="module")
def jobs(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Variant, Future[Served]]]:
    """What tests of this run ask for: programs that sample, and SGLang without speculation."""
    folder = tmp_path_factory.mktemp("mixed")
    needed = [name for item in request.session.items for name in getattr(item, "fixturenames", ())]
    variants = [*asked(request.session.items, "served"), *[PLAIN] * ("alone" in needed)]

    def run(variant: Variant) -> Served:
        return alone_in(models, folder) if variant == PLAIN else mixed_in(variant, models, folder / str(variant))

    with side_by_side(AT_A_TIME) as pool:
        yield started(pool, [variant for variant in (CHAIN, TREE, LOOK_UPS, BLOCKS, PLAIN) if variant in variants], run)


def mixed_in(variant: Variant, models: Path, folder: Path) -> Served:
    """What a program answered that samples, in an engine that throws a request out after every few forwards."""
    engine = variant.engine(models) | GRAMMARS
    wheel = build_program(engine, folder / "wheel", *variant.options)
    requests = mixed(random.Random(1))
    return serve(engine, requests, folder / "job", overlap=variant.overlap, wheel=wheel, settings=THROWN_OUT)


def alone_in(models: Path, folder: Path) -> Served:
    """The greedy requests in SGLang without speculation.

    One after the other: in a batch SGLang's penalties miss a token now and then.
    """
    requests = [request for request in mixed(random.Random(1))[:COUNT] if is_greedy(request["sampling"])]
    in_any_order = [{name: value for name, value in request.items() if name != "after"} for request in requests]
    engine = PLAIN.engine(models) | GRAMMARS | {"max_running_requests": 1, "max_total_tokens": 4096}
    return serve(engine, in_any_order, folder / "alone")


@pytest.fixture(scope="module", params=[CHAIN, TREE, LOOK_UPS, BLOCKS], ids=str)
def served(request: pytest.FixtureRequest, jobs: Mapping[Variant, Future[Served]]) -> Served:
    """What a program answered that samples."""
    return jobs[request.param].result()


def test_every_step_is_the_program_s(served: Served) -> None:
    """With greedy requests and others in a batch, of which some were thrown out and began anew."""
    assert served.state["specc"]["left"] == {}
    assert served.state["specc"]["served"] > 50
    both = list(zip(served.requests, served.outputs, strict=True))
    thrown_out = [request["sampling"] for request, output in both if output["num_retractions"]]
    for kind in (lambda sampling: not is_greedy(sampling), is_penalized, is_restricted):
        assert any(map(kind, thrown_out)), thrown_out
    accepted = [output for output in served.outputs if output.get("spec_verify_ct")]
    tokens, steps = (sum(output[name] for output in accepted) for name in ("completion_tokens", "spec_verify_ct"))
    assert tokens / steps > 1.05


def test_a_program_s_texts_are_those_of_their_seeds(served: Served, oracle: Oracle) -> None:
    """Token for token: greedy ones the most probable, others drawn as plain Python draws, from transformers' scores.

    These are changed by what each request asks for: penalties for all that was emitted, thrown out between or not.
    """
    for number, (request, output) in enumerate(zip(served.requests, served.outputs, strict=True)):
        assert oracle.expected(dict(request), output["token_ids"]) == output["token_ids"], number


def test_a_program_s_texts_are_the_same_alone_and_in_a_batch(served: Served) -> None:
    compared = 0
    for place, number in enumerate(AGAIN):
        alone, beside = served.outputs[COUNT + place], served.outputs[number]
        assert alone["token_ids"] == beside["token_ids"], number
        compared += not is_greedy(dict(served.requests[number]["sampling"]))
    assert compared == 8


def test_a_program_s_json_is_that_of_its_schema(served: Served) -> None:
    """Drawn or not, with drafts of a chain and of a tree, on every prompt: whole, and of the right types."""
    documents = [
        json.loads(output["text"])
        for request, output in zip(served.requests, served.outputs, strict=True)
        if "json_schema" in request["sampling"] and output["finish_reason"]["type"] == "stop"
    ]
    assert len(documents) > COUNT / 8
    for document in documents:
        assert document.keys() == SCHEMA["properties"].keys()
        assert (type(document["name"]), type(document["ok"])) == (str, bool)
        assert document["count"] in range(100)
        assert {*document["tags"]} <= {"a", "bc", "def"}


def test_a_program_s_log_probabilities_are_the_targets(served: Served, oracle: Oracle) -> None:
    """Of prompts and answers, of greedy requests and of drawn ones, before filters."""
    compared = 0
    for number, (request, output) in enumerate(zip(served.requests, served.outputs, strict=True)):
        if not request.get("logprobs"):
            continue
        prompt, answer = oracle.tokens(request["text"]), output["token_ids"]
        scores = oracle.scores(prompt + answer).log_softmax(-1)
        for name, tokens, first in (("logprobs", answer, len(prompt) - 1), ("prompt_logprobs", prompt[1:], 0)):
            logprobs = output[name][len(output[name]) - len(tokens) :]
            assert [token for _, token in logprobs] == tokens, (number, name)
            expected = [float(scores[first + place, token]) for place, token in enumerate(tokens)]
            assert [value for value, _ in logprobs] == pytest.approx(expected, abs=1e-4), (number, name)
        compared += 1
        best = scores[len(prompt) - 1 : -1].topk(request["top_logprobs"])
        best_logprobs = [[value for value, _ in place] for place in output["top_logprobs"]]
        assert torch.tensor(best_logprobs).flatten().tolist() == pytest.approx(
            best.values.flatten().tolist(), abs=1e-4
        ), number
        assert [[token for _, token in place] for place in output["top_logprobs"]] == (
            best.indices.tolist() if request["top_logprobs"] else []
        )
    assert compared > 6


@pytest.fixture(scope="module")
def alone(jobs: Mapping[Variant, Future[Served]]) -> Served:
    """The greedy requests in SGLang without speculation."""
    return jobs[PLAIN].result()


def test_a_program_s_greedy_answers_are_those_without_speculation(served: Served, alone: Served) -> None:
    """With penalties, biases and grammars, and their log-probabilities."""
    both = zip(served.requests[:COUNT], served.outputs, strict=False)
    greedy = [(request, output) for request, output in both if is_greedy(dict(request["sampling"]))]
    for (request, output), expected in zip(greedy, alone.outputs, strict=True):
        for name in ("token_ids", "text", "finish_reason"):
            assert output[name] == expected[name], request
        for name in ("logprobs", "prompt_logprobs") if request.get("logprobs") else ():
            logprobs, expected_logprobs = (
                [value for value, _ in answer[name] if value is not None] for answer in (output, expected)
            )
            assert logprobs == pytest.approx(expected_logprobs, abs=1e-4), request
    for kind in (is_penalized, is_restricted, lambda sampling: "logit_bias" in sampling):
        assert any(kind(dict(request["sampling"])) for request, _ in greedy)


def test_a_program_s_distribution_is_that_without_speculation(models: Path, tmp_path: Path) -> None:
    """And a temperature that is a little too high is noticed by the same test."""
    engine = CHAIN.engine(models) | CROWD
    wheel = build_program(engine, tmp_path / "wheel", *CHAIN.options)
    requests = [*short(seeds=True), *short(BIAS, seeds=True)]
    with side_by_side(2) as pool:
        limit = {"limit_s": 300 + TEXTS}
        speculating = pool.submit(serve, engine, requests, tmp_path / "program", overlap=True, wheel=wheel, **limit)
        without = pool.submit(serve, PLAIN.engine(models) | CROWD, short(seeds=False), tmp_path / "plain", **limit)
        served, plain = speculating.result(), without.result()
    assert served.state["specc"]["left"] == {}
    fair, biased, expected = texts(served)[:3], texts(served)[3:], texts(plain)
    assert surprise(*zip(fair, expected, strict=True)) > 1e-3
    assert surprise(*zip(biased, expected, strict=True)) < 1e-3


def test_what_a_program_was_built_without_is_sglang_s(models: Path, tmp_path: Path, oracle: Oracle) -> None:
    """The step as a whole as long as such a request is there, by the name of what it asks for.

    What such steps emit of others is output like any: their penalties are exact when the program goes on.
    """
    engine = TREE.engine(models) | SERVER | GRAMMARS | {"max_total_tokens": 4096, "schedule_conservativeness": 1.0}
    wheel = build_program(engine, tmp_path / "wheel", "--verify", "target_only", "--sampling", "top_k,penalties")
    kinds: dict[str, dict[str, Any]] = {
        "": {"temperature": 0.9, "top_k": 30},
        "top_p": {"temperature": 0.9, "top_p": 0.9},
        "min_p": {"temperature": 0.9, "top_k": 5, "min_p": 0.1},
        "logit bias": {"temperature": 0.9, "logit_bias": {"5": 1.0}},
        "a grammar": {"temperature": 0, "regex": "[a-z]{20}"},
        "logprobs": {"temperature": 0},
    }
    more = {"max_new_tokens": 12, "ignore_eos": True, "sampling_seed": 3}
    requests = [
        {"text": TAILS[0], "sampling": kind | more, "logprobs": name == "logprobs"} for name, kind in kinds.items()
    ]
    requests.append({"text": TAILS[2], "sampling": {"temperature": 0, "repetition_penalty": 1.8, "max_new_tokens": 70}})
    in_turn = [request | ({"after": [number - 1, 1000]} if number else {}) for number, request in enumerate(requests)]
    between = {"temperature": 0, "min_new_tokens": 16, "max_new_tokens": 16}
    served = serve(
        engine,
        [*in_turn, {"text": TAILS[1], "sampling": between, "after": [len(kinds), 8]}],
        tmp_path / "job",
        wheel=wheel,
    )
    assert served.state["specc"]["left"].keys() == {*kinds, "min_new_tokens"} - {""}
    assert served.state["specc"]["left"]["min_new_tokens"] > 4
    penalties = ["frequency_penalty", "presence_penalty", "repetition_penalty"]
    assert sorted(served.state["specc"]["sampling"]) == [*penalties, "seed", "temperature", "top_k"]
    answer = served.outputs[len(kinds)]["token_ids"]
    assert len(answer) == 70
    assert oracle.expected(requests[-1], answer)[45:] == answer[45:]
