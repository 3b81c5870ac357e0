"""Servers of vLLM with programs of several shapes, on stand-ins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from fakes.vllm_server import PROGRAM, Server
from fakes.vllm_tables import VLLM
from programs import planned

from specc import runtime
from specc.runtime.plan.plan import Plan

Serve = Callable[..., Server]
PROMPTS = {2: [4, 9, 2], 0: [7, 1], 5: [5, 5, 8, 1, 2], 1: [1]}
ROWS = list(PROMPTS)
SHAPES = [0, 1, 3]
ALGORITHMS = ["STANDALONE", "EAGLE", "FROZEN_KV_MTP", "NGRAM"]


def plans_of(algorithm: str, steps: Sequence[int] = SHAPES, **keys: Any) -> tuple[Plan, ...]:
    """A program for vLLM, the deepest shape first."""
    more: dict[str, Any] = {"page_size": 4, "max_requests": 6, "buckets": [1, 2, 4], "num_steps": [*steps]} | keys
    more |= {"options": {"window": 64, "longest": 3, "shortest": 1}} if algorithm == "NGRAM" else {}
    return planned(algorithm, engine="vllm", **more)


@contextlib.contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """What starts servers with the plans of a program; nothing is measured."""
    for name in ("SPECC_PROGRAM", "SPECC_SHAPE", "SPECC_STEP_TIMES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPECC_CAPTURE", "none")
    monkeypatch.setattr(runtime, "measure_step_times", lambda *_: {})
    with VLLM.starting(Server, PROGRAM) as start:

        def of(plans: Sequence[Plan], **how: Any) -> Server:
            return start(plans[0], others=plans[1:], **how)

        yield of


def lookup(server: Server) -> Any:
    """In what the scheduler looks up how many drafts there are."""
    return server.scheduler.dynamic_sd_lookup
