"""A seeded stream of requests that join and end at any time, sample, leave, and outgrow rows, blocks and model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from engine_prompts import PREAMBLES, TAILS
from vllm_server import MODEL_LEN, ROWS

STREAM = 12
BURST = ROWS + 2
FULL = range(19, 24)
"""How many tokens are missing to the model's length in prompts of requests that grow to it: no step suits them all."""
PROMPT = 90
"""Tokens of the longest prompts, but those of requests that grow to the model's length."""

Tokenize = Callable[[str], list[int]]


def workload(tokenize: Tokenize, seed: int) -> list[dict[str, Any]]:
    """Requests of a job, see `serve.py`; most of them greedy.

    First a stream of all kinds, of which each arrives when one before it has some tokens. Then a burst of greedy ones
    with long answers: more rows than there are, and more than the blocks can hold. Last some that end where the model
    does.
    """
    draw = random.Random(seed)
    made = [streamed(draw, tokenize, number) for number in range(STREAM)]
    begin = {"after": [STREAM - 1, 1]}
    made += [greedy(prompt(draw, tokenize, 1), draw.randint(60, 80)) | begin for _ in range(BURST)]
    full = [greedy(prompt(draw, tokenize, 8, MODEL_LEN - missing), None) for missing in FULL]
    return made + [request | {"after": [STREAM + number, 40]} for number, request in enumerate(full)]


def workloads(tokenize: Tokenize, seeds: Iterable[int]) -> list[dict[str, Any]]:
    """A workload for each seed, which begins when the last one before it ends."""
    made: list[dict[str, Any]] = []
    for seed in seeds:
        begin = len(made)
        for request in workload(tokenize, seed):
            if "after" in request:
                predecessor, tokens = request["after"]
                request["after"] = [begin + predecessor, tokens]
            elif begin:
                request["after"] = [begin - 1, MODEL_LEN]
            made.append(request)
    return made


def streamed(draw: random.Random, tokenize: Tokenize, number: int) -> dict[str, Any]:
    """One request of the stream: every third is not just greedy."""
    request = greedy(prompt(draw, tokenize, draw.choice((1, 1, 2, 3))), draw.choice((1, 2, draw.randint(8, 24))))
    sampling = request["sampling"]
    if number % 3 == 1:
        kind = number // 3 % 4
        if kind == 0:
            sampling |= {"temperature": 0.8, "seed": draw.randrange(1 << 31), "max_tokens": 12}
        elif kind == 1:
            sampling |= {"logprobs": 0, "max_tokens": 16}
        elif kind == 2:
            request["abort_after"] = 5
            sampling["max_tokens"] = 40
        else:
            sampling |= {"stop_token_ids": draw.sample(range(2, 400), 150), "max_tokens": 40}
    if number:
        request["after"] = [max(0, number - draw.randint(1, 4)), draw.choice((0, 1, 4))]
    return request


def greedy(prompt: list[int], tokens: int | None) -> dict[str, Any]:
    """A request whose text is determined; without a number of tokens it ends where the model does."""
    return {"prompt": prompt, "sampling": {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}}


def prompt(draw: random.Random, tokenize: Tokenize, pieces: int, most: int = PROMPT) -> list[int]:
    """The last tokens of some preambles and a tail."""
    return tokenize("".join(draw.choices(PREAMBLES, k=pieces)) + draw.choice(TAILS))[-most:]


def is_greedy(request: Mapping[str, Any]) -> bool:
    """Whether its text is determined."""
    return request["sampling"]["temperature"] == 0


def without_aborts(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same requests, all of them to their ends."""
    return [{key: value for key, value in request.items() if key != "abort_after"} for request in requests]
