"""A random, seeded stream of requests: prefixes shared, joining and ending at any time, stopped, aborted, sampled."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from engine_prompts import PREAMBLES, TAILS

BURST = 12
STOPS = ("return", "self", "(", "\n", " a")


def workload(requests: int, seed: int, bursts: int = 2) -> list[dict[str, Any]]:
    """Requests of a job, see `serve.py`; most of them greedy.

    A prompt is a few preambles and a tail, from 5 to some 250 tokens. A request arrives when one of the last dozen has
    some tokens, so that about as many are there at a time. In a burst a dozen come at once, with short prompts and
    long answers: more than a small pool can hold, which SGLang does not expect of requests that may end early.
    """
    draw = random.Random(seed)
    starts = {number * requests // (bursts + 1) for number in range(1, bursts + 1)}
    made: list[dict[str, Any]] = []
    while len(made) < requests:
        if len(made) in starts:
            made += [long_answer(draw, after=len(made) - 1) for _ in range(BURST)]
        else:
            made.append(streamed(draw, len(made)))
    return made


def with_silences(requests: int, seed: int, alone: int = 8) -> list[dict[str, Any]]:
    """Two streams of requests, and between them `alone` of which each arrives when the one before has ended.

    So of several schedulers most have nothing to do for a while, after which all have again.
    """
    first = workload(requests // 2, seed)
    second, begin = workload(requests - len(first) - alone, seed + 1), len(first) + alone
    for request in second:
        place, tokens = request.get("after", [-1, 1000])
        request["after"] = [begin + place, tokens]
    sampling = {"temperature": 0, "max_new_tokens": 24}
    places = range(len(first), begin)
    silent = [{"text": TAILS[at % len(TAILS)], "sampling": sampling, "after": [at - 1, 1000]} for at in places]
    return [*first, *silent, *second]


def long_answer(draw: random.Random, after: int) -> dict[str, Any]:
    """One request of a burst."""
    sampling = {"temperature": 0, "max_new_tokens": draw.randint(60, 100)}
    return {"text": draw.choice(TAILS), "sampling": sampling, "after": [after, 1]}


def streamed(draw: random.Random, number: int) -> dict[str, Any]:
    """One request of the stream between the bursts."""
    prefix = "".join(draw.choices(PREAMBLES, k=draw.choice((0, 1, 1, 1, 2, 3, 8))))
    tokens = draw.choice((1, 2, 3, draw.randint(4, 24), draw.randint(4, 24), draw.randint(24, 64)))
    sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": draw.random() < 0.3}
    request: dict[str, Any] = {"text": prefix + draw.choice(TAILS), "sampling": sampling}
    if draw.random() < 0.2:
        sampling["stop"] = draw.sample(STOPS, k=draw.randint(1, 2))
    kind = draw.random()
    if kind < 0.1:
        sampling |= {"temperature": 0.8, "top_k": 20, "top_p": 0.95}
    elif kind < 0.25:
        request["abort_after"] = draw.randint(1, tokens)
    elif kind < 0.35:
        request["stream"] = False
    elif kind < 0.45:
        request["logprobs"] = True
    if number and draw.random() < 0.8:
        request["after"] = [max(0, number - draw.randint(1, 12)), draw.choice((0, 1, 2, 8, 32))]
    elif draw.random() < 0.3:
        request["delay"] = round(draw.random(), 2)
    return request


def is_greedy(request: dict[str, Any]) -> bool:
    """Whether its text is determined."""
    return request["sampling"]["temperature"] == 0


def without_aborts(requests: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same requests, all of them to their ends."""
    return [{key: value for key, value in request.items() if key != "abort_after"} for request in requests]
