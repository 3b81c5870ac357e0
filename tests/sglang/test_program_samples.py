"""A program that samples inside SGLang: its texts are those of their seeds, its distribution is the target's."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from sampling_oracle import drawn
from sglang_models import EXAMPLES
from sglang_programs import build_program
from sglang_server import PLAIN, SERVER, Served, Variant, serve
from sglang_statistics import surprise
from sglang_workload import PREAMBLES, TAILS
from transformers import AutoModelForCausalLM, AutoTokenizer

CHAIN = Variant("STANDALONE", "standalone", overlap=True, program=True, samples=True)
TREE = Variant("EAGLE", "eagle", topk=4, num_draft_tokens=12, program=True, samples=True)
KINDS: list[dict[str, float]] = [
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.3, "top_k": 20},
    {"temperature": 0.9, "top_p": 0.85},
    {"temperature": 1.1, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
]
NEAR = 1e-3
"""Added to the score of the token that came: if it was drawn it still is, whatever SGLang's forwards have rounded."""
SEEDS = 1 << 63


COUNT, BURST, AGAIN = 48, range(12, 28), range(6, 18)


def mixed(draw: random.Random) -> list[dict[str, Any]]:
    """COUNT requests of all kinds and seeds, and those of AGAIN again, alone, when all others have ended.

    Those of BURST come at once with long answers, see `sglang_workload`.
    """
    made: list[dict[str, Any]] = []
    for number in range(COUNT):
        burst = number in BURST
        text = "".join(draw.choices(PREAMBLES, k=0 if burst else draw.choice((0, 1, 2)))) + draw.choice(TAILS)
        sampling = {**KINDS[number % len(KINDS)], "max_new_tokens": draw.choice((60, 80) if burst else (1, 8, 24))}
        sampling |= {"ignore_eos": not burst, "sampling_seed": draw.choice((number, draw.randrange(-SEEDS, SEEDS)))}
        after = [BURST[0] - 1, 1] if burst else [max(0, number - draw.randint(1, 12)), draw.choice((0, 1, 8))]
        made.append({"text": text, "sampling": sampling, **({"after": after} if number else {})})
    alone = [made[number] | {"after": [COUNT + place - 1, 1000]} for place, number in enumerate(AGAIN)]
    return made + alone


def is_greedy(sampling: dict[str, Any]) -> bool:
    return sampling["temperature"] == 0 or sampling.get("top_k") == 1


@pytest.fixture(scope="module", params=[CHAIN, TREE], ids=str)
def served(request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """What a program answered that samples, in a pool so small that requests are thrown out."""
    variant, folder = request.param, tmp_path_factory.mktemp("mixed")
    engine = variant.engine(models)
    wheel = build_program(engine, folder / "wheel", *variant.options)
    requests = mixed(random.Random(1))
    return serve(engine, requests, folder / "job", overlap=variant.overlap, wheel=wheel)


def test_every_step_is_the_program_s(served: Served) -> None:
    """With greedy requests and others in a batch, of which some were thrown out and began anew."""
    assert served.state["specc"]["left"] == {}
    assert served.state["specc"]["served"] > 50
    both = zip(served.requests, served.outputs, strict=True)
    assert any(output["num_retractions"] for request, output in both if not is_greedy(request["sampling"]))
    accepted = [output for output in served.outputs if output.get("spec_verify_ct")]
    tokens, steps = (sum(output[name] for output in accepted) for name in ("completion_tokens", "spec_verify_ct"))
    assert tokens / steps > 1.2


def test_a_program_s_texts_are_those_of_their_seeds(served: Served) -> None:
    """Token for token: greedy ones the most probable, others drawn as plain Python draws from transformers' scores."""
    model = AutoModelForCausalLM.from_pretrained(EXAMPLES / "target", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    for number, (request, output) in enumerate(zip(served.requests, served.outputs, strict=True)):
        prompt, answer = tokenizer(request["text"]).input_ids, output["token_ids"]
        with torch.no_grad():
            scores = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        sampling = request["sampling"]
        if is_greedy(sampling):
            assert scores.argmax(-1).tolist() == answer, number
            continue
        filters = {name: sampling[name] for name in ("top_k", "top_p", "min_p") if name in sampling}
        seed, temperature = sampling["sampling_seed"] % (SEEDS - 1), sampling["temperature"]
        for place, token in enumerate(answer):
            scores[place, token] += NEAR
            expected = drawn(scores[place].tolist(), seed, temperature, len(prompt) + place, **filters)
            assert token == expected, (number, place)


def test_a_program_s_texts_are_the_same_alone_and_in_a_batch(served: Served) -> None:
    compared = 0
    for place, number in enumerate(AGAIN):
        alone, beside = served.outputs[COUNT + place], served.outputs[number]
        assert alone["token_ids"] == beside["token_ids"], number
        compared += not is_greedy(served.requests[number]["sampling"])
    assert compared == 8


PROMPTS: list[tuple[str, dict[str, float]]] = [
    ("import os\n", {"temperature": 1.0}),
    ("class Foo:\n    def ", {"temperature": 1.2, "top_k": 20}),
    ("for name in ", {"temperature": 0.9, "top_p": 0.9}),
]
TEXTS = int(os.environ.get("SPECC_TEST_TEXTS", "300"))
"""Of each prompt; `make sglang TEXTS=2000` takes some six minutes."""
BIAS = 1 + 0.1 * math.sqrt(2000 / TEXTS)
"""A temperature that so many texts tell from the right one; of 2000 one that is a tenth too high."""
CROWD = {"max_running_requests": 64, "max_total_tokens": 8192, "chunked_prefill_size": 2048}


def short(warmer: float = 1.0, *, seeds: bool) -> list[dict[str, Any]]:
    """Four tokens of every prompt, TEXTS times; without seeds SGLang's own sampler draws as it likes."""
    made: list[dict[str, Any]] = []
    for text, asked in PROMPTS:
        sampling = {**asked, "temperature": asked["temperature"] * warmer, "max_new_tokens": 4, "ignore_eos": True}
        for number in range(TEXTS):
            seed = {"sampling_seed": number} if seeds else {}
            made.append({"text": text, "stream": False, "sampling": sampling | seed})
    return made


def test_a_program_s_distribution_is_that_without_speculation(models: Path, tmp_path: Path) -> None:
    """And a temperature that is a little too high is noticed by the same test."""
    engine = CHAIN.engine(models) | CROWD
    wheel = build_program(engine, tmp_path / "wheel", *CHAIN.options)
    requests = [*short(seeds=True), *short(BIAS, seeds=True)]
    served = serve(engine, requests, tmp_path / "program", overlap=True, wheel=wheel, limit_s=300 + TEXTS)
    assert served.state["specc"]["left"] == {}
    plain = serve(PLAIN.engine(models) | CROWD, short(seeds=False), tmp_path / "plain", limit_s=300 + TEXTS)
    fair, biased, expected = texts(served)[:3], texts(served)[3:], texts(plain)
    assert surprise(*zip(fair, expected, strict=True)) > 1e-3
    assert surprise(*zip(biased, expected, strict=True)) < 1e-3


def texts(served: Served) -> list[list[list[int]]]:
    """The tokens of every text, by prompt."""
    found = [output["token_ids"] for output in served.outputs]
    return [found[start : start + TEXTS] for start in range(0, len(found), TEXTS)]


def test_what_a_program_was_built_without_is_sglang_s(models: Path, tmp_path: Path) -> None:
    """The step as a whole as long as such a request is there, by the name of what it asks for."""
    engine = TREE.engine(models) | SERVER | {"max_total_tokens": 4096, "schedule_conservativeness": 1.0}
    wheel = build_program(engine, tmp_path / "wheel", "--verify", "target_only", "--sampling", "top_k")
    kinds: dict[str, dict[str, Any]] = {
        "": {"temperature": 0.9, "top_k": 30},
        "top_p": {"temperature": 0.9, "top_p": 0.9},
        "min_p": {"temperature": 0.9, "top_k": 5, "min_p": 0.1},
        "penalties": {"temperature": 0.9, "frequency_penalty": 0.5},
        "logit bias": {"temperature": 0.9, "logit_bias": {"5": 1.0}},
    }
    more = {"max_new_tokens": 12, "ignore_eos": True, "sampling_seed": 3}
    requests = [{"text": TAILS[0], "sampling": kind | more} for kind in kinds.values()]
    in_turn = [one | ({"after": [number - 1, 1000]} if number else {}) for number, one in enumerate(requests)]
    served = serve(engine, in_turn, tmp_path / "job", wheel=wheel)
    assert served.state["specc"]["left"].keys() == {*kinds} - {""}
    assert served.state["specc"]["sampling"] == ["seed", "temperature", "top_k"]
