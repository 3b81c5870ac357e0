"""Programs as vLLM's decode steps, on stand-ins of its modules: texts, what is left to vLLM, and whose blocks are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
from fakes.vllm_modules import VLLM
from fakes.vllm_server import PROGRAM, Server
from programs import load

from specc.driver.build import build_program
from specc.runtime.plan.plan import Plan

Serve = Callable[..., Server]
PROMPTS = {2: [4, 9, 2], 0: [7, 1], 5: [5, 5, 8, 1, 2], 1: [1]}
BATCHES = [[2, 0, 5, 1], [0, 1], [5], [1, 2, 5], [2], [1, 0, 2], [2, 0, 5, 1]]


@cache
def plan_of(algorithm: str, *keys: tuple[str, Any]) -> Plan:
    """A program for vLLM."""
    more = {"page_size": 4, "max_requests": 6, "buckets": [1, 2, 4], **dict(keys)}
    return build_program(load(algorithm, engine="vllm", **more)).plan


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server."""
    for name in ("SPECC_PROGRAM", "SPECC_CAPTURE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPECC_CAPTURE", "none")
    with VLLM.installed(PROGRAM):
        yield lambda plan, **how: Server(plan, monkeypatch, **how)


def run(server: Server, batches: Sequence[Sequence[int]]) -> None:
    for rows in batches:
        server.decode(rows)
    server.settle()
    for row in server.steps:
        assert server.emitted(row) == server.own_text(row)


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
def test_texts_are_the_targets_own(serve: Serve, algorithm: str) -> None:
    server = serve(plan_of(algorithm))
    server.begin(PROMPTS)
    run(server, BATCHES)
    print(server.steps, server.program.report())
