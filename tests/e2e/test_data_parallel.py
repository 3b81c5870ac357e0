"""Three processes whose forwards contain a collective: uneven queues, the target's own texts, and no deadlock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ports import free_port

from specc.lab.engine.engine import Engine
from specc.lab.engine.reference import greedy

from .conftest import PROMPTS, ROOT, Case, Models

SECONDS = 240.0
CASES = [
    Case("STANDALONE", "trained"),
    Case("EAGLE", "trained", page_size=16, overlap=False, topk=2, nodes=5),
    Case("NGRAM", "trained"),
]
QUEUES = [
    [(prompt, 6 + 3 * index) for index, prompt in enumerate((*PROMPTS, "import re\n"))],
    [("def f(", 12), ("while True:\n    ", 3)],
    [],
]
"""Prompts and tokens of each rank: more than a batch holds, few, and none at all."""
FAILURE = 9
"""How many forwards of the second rank succeed in the last job, before one does not."""

Answers = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def answers(build: Callable[[Case], ModuleType], site: Path, models: dict[str, Models]) -> Answers:
    """What each rank says of each job, in processes that must end by themselves."""
    for case in CASES:
        build(case)
    jobs = [job(case.name, case, models) for case in CASES]
    jobs.append(job("failure", CASES[0], models, fails_after=FAILURE))
    by_rank = run_processes(site, json.dumps(jobs, default=str))
    return {task["name"]: list(column) for task, column in zip(jobs, zip(*by_rank, strict=True), strict=True)}


def job(name: str, case: Case, models: dict[str, Models], fails_after: int = -1) -> dict[str, Any]:
    """What all ranks are told: a case, queues, and when the second rank fails."""
    shared = {"case": asdict(case), "models": asdict(models[case.models]), "queues": QUEUES}
    return {"name": name, "fails_after": [-1, fails_after, -1], **shared}


def run_processes(site: Path, jobs: str) -> list[list[dict[str, Any]]]:
    """Run a process for each rank; their answers, one for each job."""
    port = str(free_port())
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])))
    command = [sys.executable, "-m", "e2e.data_parallel_rank", str(site)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    pipes |= {"cwd": ROOT / "tests", "env": os.environ | {"PYTHONPATH": paths}}
    processes = [subprocess.Popen([*command, str(rank), port], **pipes) for rank in range(len(QUEUES))]
    try:
        for process in processes:
            assert process.stdin
            process.stdin.write(jobs)
            process.stdin.close()
            process.stdin = None
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [[json.loads(line) for line in output.splitlines()] for output in outputs]


def wanted(engine: Engine, rank: int) -> list[list[int]]:
    """The target's own texts."""
    eos = engine.target.eos_token_ids
    return [list(greedy(engine.target, engine.encode(prompt), new, eos)) for prompt, new in QUEUES[rank]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_texts_and_forwards(case: Case, answers: Answers, make_engine: Callable[..., Engine]) -> None:
    """No two ranks were ever in different forwards: the collective in each would have failed."""
    engine, ranks = make_engine(case), answers[case.name]
    assert [rank["error"] for rank in ranks] == [None] * len(QUEUES)
    for number, rank in enumerate(ranks):
        assert rank["texts"] == wanted(engine, number)
    calls = ranks[0]["calls"]
    assert calls == ranks[1]["calls"] == ranks[2]["calls"]
    assert {name for name, _, _ in calls} == set(engine.plan.callbacks())
    assert {rows for name, _, rows in calls if name == "target"} == {1, 2, 4}
    launches = [rank["prefills"] + rank["steps"] for rank in ranks]
    assert launches[0] == launches[1] == launches[2] == ranks[2]["idle"]
    assert ranks[0]["idle"] < ranks[1]["idle"] < launches[1]


def test_a_forward_that_fails_holds_nobody(answers: Answers) -> None:
    """Its process ends, and the others, which wait for it in a collective, see that at once."""
    first, failing, last = answers["failure"]
    assert failing["error"] == "StepFailedError: InjectedError"
    assert len(failing["calls"]) == FAILURE
    for rank_answer in (first, last):
        assert rank_answer["error"] == "StepFailedError: ConnectionError"
        assert len(rank_answer["calls"]) == FAILURE + 1
