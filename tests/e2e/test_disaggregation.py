"""Prefill in one process, decode in another: `generate`'s own text, as many steps as in one, and what a death costs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ports import free_port

from specc.lab.engine.disaggregation import DecodeWorker, Outcome, Role, connect
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import TransferError
from specc.lab.engine.reference import greedy
from specc.lab.engine.serving.requests.request import StopConditions

from .conftest import DRAFTS, PROMPTS, ROOT, Case, Models

NEW = 16
SECONDS = 300.0
CASES = [
    *(Case(algorithm, "trained") for algorithm in (*DRAFTS, "NGRAM")),
    Case("EAGLE", "trained", page_size=16, overlap=False, topk=2, nodes=5),
]
NAMED = {f"request {index}": prompt for index, prompt in enumerate(PROMPTS)}


class Prefiller:
    """The other process. It serves one job after the other, so it imports its libraries once."""

    def __init__(self, site: Path, models: dict[str, Models]) -> None:
        self.site, self.models = site, models
        self._process: subprocess.Popen[str] | None = None

    def start(self, case: Case, port: int, prompts: dict[str, str], *, dies_after: int | None = None) -> None:
        """Let it prefill prompts for the peer at a port, and die when it has sent so many tensors after the first."""
        job = {"case": asdict(case), "models": asdict(self.models[case.models]), "port": port, "new": NEW}
        job |= {"prompts": prompts, "dies_after": dies_after}
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "e2e.prefill_side", str(self.site)]
            paths = os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])))
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            environment = os.environ | {"PYTHONPATH": paths}
            self._process = subprocess.Popen(command, cwd=ROOT / "tests", env=environment, **pipes)
        assert self._process.stdin
        self._process.stdin.write(json.dumps(job, default=str) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What it says of the job."""
        assert self._process
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def status(self) -> int:
        """Wait for its end: the exit status."""
        assert self._process
        self._process.communicate(timeout=SECONDS)
        return self._process.returncode

    def close(self) -> None:
        """End it; what is left of its connections must not abort it."""
        if self._process is not None:
            assert self.status() == 0


@pytest.fixture(scope="module")
def prefiller(site: Path, models: dict[str, Models]) -> Iterator[Prefiller]:
    process = Prefiller(site, models)
    yield process
    process.close()


def listen(engine: Engine, port: int) -> DecodeWorker:
    """A worker with the other process as its peer."""
    worker = DecodeWorker(engine)
    worker.connect(connect(Role.decode, "127.0.0.1", port, timeout=SECONDS))
    return worker


def expect_text(engine: Engine, outcome: Outcome) -> None:
    """The text of a request is that of the target alone."""
    assert outcome.error is None
    completion = outcome.completion
    assert completion
    assert list(completion.prompt_ids) == engine.encode(NAMED[outcome.request])
    assert completion.token_ids == greedy(engine.target, completion.prompt_ids, NEW, engine.target.eos_token_ids)


def expect_empty(engine: Engine, kept: int = 0) -> None:
    """Nobody holds a row, or a page but `kept` ones."""
    engine.prefixes.clear()
    assert engine.allocator.free_pages == engine.allocator.capacity - kept
    assert engine.table.free_rows == engine.plan.size("P") - 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_text_equals_generate(case: Case, make_engine: Callable[..., Engine], prefiller: Prefiller) -> None:
    engine, port = make_engine(case, num_pages=400), free_port()
    engine.allocator.grow("others", 5)
    kept = len(engine.allocator.pages_of("others"))
    prefiller.start(case, port, NAMED)
    outcomes = list(listen(engine, port).serve())
    assert sorted(outcome.request for outcome in outcomes) == sorted(NAMED)
    for outcome in outcomes:
        expect_text(engine, outcome)
    assert engine.stats.prefills == 0
    assert engine.stats.unhealthy == 0
    expect_empty(engine, kept)
    here = engine.generate(NAMED.values(), StopConditions(NEW, engine.target.eos_token_ids))
    accepted = {outcome.request: outcome.completion.accept_lens for outcome in outcomes if outcome.completion}
    assert accepted == {name: completion.accept_lens for name, completion in zip(NAMED, here, strict=True)}
    assert prefiller.answer() == {"gone": dict.fromkeys(NAMED), "pages": 0, "rows": 0}


def test_killing_the_side_that_prefills_costs_what_it_had_not_sent(
    make_engine: Callable[..., Engine], prefiller: Prefiller
) -> None:
    """The batch holds four: the first three are sent, the fourth dies under way, the fifth was still to come."""
    engine, port = make_engine(CASES[0]), free_port()
    count = 1 + sum(len(pool.buffers) for pool in engine.pools.values())
    prefiller.start(CASES[0], port, NAMED, dies_after=3 * (2 + count) + 5)
    worker = listen(engine, port)
    outcomes = {outcome.request: outcome for outcome in worker.serve()}
    assert prefiller.status() == -signal.SIGKILL
    for index in range(3):
        expect_text(engine, outcomes.pop(f"request {index}"))
    under_way, still_to_come = (outcomes.pop(f"request {index}").error for index in (3, 4))
    assert not outcomes
    assert isinstance(under_way, TransferError)
    assert under_way.request == "request 3"
    assert re.search(rf"the connection broke after [23] of {count} tensors of its state", str(under_way))
    assert isinstance(still_to_come, TransferError)
    assert still_to_come.request == "request 4"
    assert "peer 'prefill' is gone" in str(still_to_come)
    expect_empty(engine)
    again = free_port()
    prefiller.start(CASES[0], again, {"request 1": NAMED["request 1"]})
    worker.connect(connect(Role.decode, "127.0.0.1", again, timeout=SECONDS))
    for outcome in worker.serve():
        expect_text(engine, outcome)
    assert prefiller.answer()["gone"] == {"request 1": None}


def test_programs_that_differ_are_refused_on_both_sides(
    make_engine: Callable[..., Engine], build: Callable[[Case], ModuleType], prefiller: Prefiller
) -> None:
    engine, port = make_engine(CASES[-1]), free_port()
    build(CASES[1])
    prefiller.start(CASES[1], port, NAMED)
    with pytest.raises(build(CASES[-1]).SchemaMismatchError, match="page_size is 16 here, 1 there"):
        listen(engine, port)
    refused = prefiller.answer()
    assert refused["refused"] == "SchemaMismatchError"
    assert "page_size is 1 here, 16 there" in refused["message"]
