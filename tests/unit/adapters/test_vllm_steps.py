"""Programs as vLLM's decode steps, on stand-ins of its modules: texts, what is left to vLLM, what is written."""

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
    more |= {"options": {"window": 64, "longest": 3, "shortest": 1}} if algorithm == "NGRAM" else {}
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


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE", "NGRAM"])
def test_texts_are_the_targets_own(serve: Serve, algorithm: str, cuda: bool) -> None:
    """On a GPU tokens are on their way to the host while the next step runs."""
    server = serve(plan_of(algorithm), cuda=cuda)
    server.begin(PROMPTS)
    run(server, BATCHES)
    server.judge()
    assert server.program.report() == {
        "program": PROGRAM, "version": "0.1.0+p1", "capture": "none", "sampling": [], "served": len(BATCHES),
        "left": {},
    }  # fmt: skip


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE", "NGRAM"])
def test_steps_of_either_go_on_where_the_other_stopped(serve: Serve, algorithm: str) -> None:
    server = serve(plan_of(algorithm))
    server.begin(PROMPTS)
    server.runner.sampler.wants_logprobs[5] = True
    run(server, BATCHES)
    server.decode([0, 2], drafts=2)
    run(server, BATCHES)
    server.judge()
    assert server.program.left == {
        "log-probabilities": 2 * sum(5 in rows for rows in BATCHES),
        "fewer drafts than 3": 1,
    }
    assert server.program.served == 2 * sum(5 not in rows for rows in BATCHES)


@pytest.mark.parametrize("longest", [36, 38])
@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
def test_nothing_is_written_behind_the_longest_text(serve: Serve, algorithm: str, longest: int) -> None:
    """Nor into blocks that nobody has: the program stops where its window would end behind, and no step before."""
    plan = plan_of(algorithm)
    server = serve(plan, longest=longest)
    server.begin({0: PROMPTS[5], 3: PROMPTS[2]})
    lengths = list[int]()
    while len(server.text(0)) < longest:
        before, served = len(server.text(0)), server.program.served
        server.decode([0])
        lengths += [before - 1] * (server.program.served > served)
        server.settle()
    server.judge()
    left = server.program.left
    assert max(lengths) + plan.kv.window <= longest
    assert left.total() and {*left} <= {"a text near max_model_len", "fewer drafts than 3"}


def test_nothing_is_written_behind_a_requests_blocks(serve: Serve) -> None:
    """Of an engine that has no slots ahead of a step."""
    plan = plan_of("EAGLE")
    server = serve(plan, ahead=0)
    server.begin(PROMPTS)
    for _ in range(3):
        run(server, BATCHES)
        server.settle()
    server.judge()
    assert server.program.left.keys() == {"no blocks for drafts"}
    assert server.program.served > 3
