"""A program that samples inside SGLang: its texts are those of their seeds, its distribution is the target's."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sampling_oracle import allowed, noise
from sglang_models import EXAMPLES
from sglang_programs import build_program
from sglang_server import PLAIN, SERVER, SMALL_POOL, Served, Variant, serve
from sglang_statistics import surprise
from sglang_workload import PREAMBLES, TAILS
from transformers import AutoModelForCausalLM, AutoTokenizer

SAMPLES = ("--verify", "target_only", "--sampling", "top_k,top_p,min_p")
CHAIN = Variant("STANDALONE", "standalone", overlap=True, program=True)
TREE = Variant("EAGLE", "eagle", topk=4, num_draft_tokens=12, program=True)
KINDS: list[dict[str, float]] = [
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.3, "top_k": 20},
    {"temperature": 0.9, "top_p": 0.85},
    {"temperature": 1.1, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
]
NEAR = 1e-3
"""So much apart are noisy scores whose order the rounding of SGLang's forwards cannot change."""
SEEDS = 1 << 63


def mixed(draw: random.Random, count: int) -> list[dict[str, Any]]:
    """Requests of all kinds with prompts of any length, of any seed; pairs of them are the same but for their time."""
    made: list[dict[str, Any]] = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        text = "".join(draw.choices(PREAMBLES, k=draw.choice((0, 1, 2)))) + draw.choice(TAILS)
        sampling = {**kind, "max_new_tokens": draw.choice((1, 8, 40, 80)), "ignore_eos": draw.random() < 0.5}
        sampling["sampling_seed"] = draw.choice((number, -number, draw.randrange(-SEEDS, SEEDS)))
        after = [max(0, number - draw.randint(1, 12)), draw.choice((0, 1, 8))]
        made.append({"text": text, "sampling": sampling, **({"after": after} if number else {})})
    alone = [made[number] | {"after": [count + place - 1, 1000]} for place, number in enumerate(range(6, 18))]
    return made + alone


def is_greedy(sampling: dict[str, Any]) -> bool:
    return sampling["temperature"] == 0 or sampling.get("top_k") == 1


@pytest.fixture(scope="module", params=[CHAIN, TREE], ids=str)
def served(request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """What a program answered that samples, in a pool so small that requests are thrown out."""
    variant, folder = request.param, tmp_path_factory.mktemp("mixed")
    engine = variant.engine(models)
    wheel = build_program(engine, folder / "wheel", *SAMPLES)
    requests = mixed(random.Random(1), 60)
    return serve(engine, requests, folder / "job", overlap=variant.overlap, wheel=wheel)


def test_every_step_is_the_program_s(served: Served) -> None:
    """With greedy requests and others in a batch, some of which were thrown out."""
    assert served.state["specc"]["left"] == {}
    assert served.state["specc"]["served"] > 50
    again = [one for one in zip(served.requests, served.outputs, strict=True) if one[1]["num_retractions"]]
    assert {is_greedy(request["sampling"]) for request, _ in again} == {True, False}
    accepted = [output for output in served.outputs if output.get("spec_verify_ct")]
    tokens, steps = (sum(output[name] for output in accepted) for name in ("completion_tokens", "spec_verify_ct"))
    assert tokens / steps > 1.2


def test_a_program_s_texts_are_those_of_their_seeds(served: Served) -> None:
    """Token for token: greedy ones the most probable, others drawn as plain Python draws from transformers' scores."""
    model = AutoModelForCausalLM.from_pretrained(EXAMPLES / "target", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    draw = random.Random(2)
    for number, (request, output) in enumerate(zip(served.requests, served.outputs, strict=True)):
        prompt, answer = tokenizer(request["text"]).input_ids, output["token_ids"]
        with torch.inference_mode():
            scores = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        sampling = request["sampling"]
        if is_greedy(sampling):
            assert scores.argmax(-1).tolist() == answer, number
            continue
        for place in {0, *draw.choices(range(len(answer)), k=4)}:
            assert answer[place] in likeliest(scores[place].tolist(), sampling, len(prompt) + place), (number, place)


def likeliest(scores: Sequence[float], sampling: dict[str, Any], position: int) -> list[int]:
    """The token that a seed draws at a position, and any that is as near to it as rounding."""
    temperature, seed = sampling["temperature"], sampling["sampling_seed"] % (SEEDS - 1)
    filters = sampling.get("top_k", 0), sampling.get("top_p", 1.0), sampling.get("min_p", 0.0)
    kept = allowed(scores, temperature, *filters)
    values = {token: scores[token] / temperature + noise(seed, position, token) for token in kept}
    return [token for token in kept if values[token] >= max(values.values()) - NEAR]


def test_a_program_s_texts_are_the_same_alone_and_in_a_batch(served: Served) -> None:
    """Requests 6 to 17 came again when all others had gone, one after the other."""
    compared = 0
    for place, number in enumerate(range(6, 18)):
        alone, beside = served.outputs[60 + place], served.outputs[number]
        assert alone["token_ids"] == beside["token_ids"], number
        compared += not is_greedy(served.requests[number]["sampling"])
    assert compared == 8


PROMPTS: list[tuple[str, dict[str, float]]] = [
    ("import os\n", {"temperature": 1.0}),
    ("class Foo:\n    def ", {"temperature": 1.2, "top_k": 20}),
    ("for name in ", {"temperature": 0.9, "top_p": 0.9}),
]
TEXTS = int(os.environ.get("SPECC_TEST_SEEDS", "300"))
"""Of each prompt; 2000 tell a temperature that is a tenth off, see `make sglang`."""


def short(warmer: float, *, seeds: bool) -> list[dict[str, Any]]:
    """Four tokens of every prompt, TEXTS times."""
    made: list[dict[str, Any]] = []
    for text, asked in PROMPTS:
        sampling = {**asked, "temperature": asked["temperature"] * warmer, "max_new_tokens": 4, "ignore_eos": True}
        for number in range(TEXTS):
            seed = {"sampling_seed": number} if seeds else {}
            made.append({"text": text, "stream": False, "sampling": sampling | seed})
    return made
