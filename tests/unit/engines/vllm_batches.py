"""Programs for vLLM, and steps of a server of it, on stand-ins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from fakes.vllm_server import Server
from programs import planned

from specc.runtime.plan.plan import Plan

PROMPTS = {2: [4, 9, 2], 0: [7, 1]}
BATCHES = [[2, 0], [0], [2]]
MANY_PROMPTS = {2: [4, 9, 2], 0: [7, 1], 5: [5, 5, 8, 1, 2], 1: [1]}
MANY_BATCHES = [[2, 0, 5, 1], [0, 1], [5], [1, 2, 5], [2], [1, 0, 2], [2, 0, 5, 1]]


@cache
def plan_of(algorithm: str, *keys: tuple[str, Any]) -> Plan:
    """A program for vLLM."""
    more = {"page_size": 4, "max_requests": 6, "buckets": [1, 2, 4], **dict(keys)}
    more |= {"options": {"window": 64, "longest": 3, "shortest": 1}} if algorithm == "NGRAM" else {}
    return planned(algorithm, engine="vllm", **more)[0]


def run(server: Server, batches: Sequence[Sequence[int]] = MANY_BATCHES) -> None:
    """Decode a step of each batch of rows."""
    for rows in batches:
        server.decode(rows)


def decode(server: Server) -> None:
    """Decode `BATCHES`; texts are the target's own whoever runs the steps."""
    server.begin(PROMPTS)
    run(server, BATCHES)
    server.judge()
