"""A part of the attack, the same in every run: no input has a third outcome."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from . import runner

SEED = "ci"
PARTS = 2
CASES = {
    "steps": 70,
    "rotated": 14,
    "shapes": 30,
    "configs": 400,
    "models": 120,
    "specir": 250,
    "modules": 30,
    "artefacts": 250,
    "wheels": 100,
    "records": 150,
    "caches": 300,
    "commands": 60,
    "asked": 80,
    "prompts": 40,
    "engines": 400,
    "servers": 25,
    "tunings": 40,
}
"""Cases in a part."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", CASES)
def test_no_third_outcome(name: str, part: int) -> None:
    tally = runner.Tally()
    for number in range(part * CASES[name], (part + 1) * CASES[name]):
        runner.attempt(name, SEED, number, tally)
    assert tally.cases == CASES[name]
    failures = [f"{runner.reproducer(name, SEED, number)}\n  {text}" for number, text in tally.failures.items()]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize(("name", "seed", "case"), [("modules", "20261130", 1)])
def test_an_input_that_has_failed(name: str, seed: str, case: int) -> None:
    """What it found has a test of its own; as long as inputs are drawn as then, this is the input."""
    assert runner.outcome_of(name, seed, case)


def test_an_attack_that_is_ended_says_what_it_counted() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "caches", "--seed", SEED, "--count", str(10**9), "--jobs", "1"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as attack:
        assert attack.stdout is not None
        assert re.match(r"caches [1-9]", attack.stdout.readline())
        attack.send_signal(signal.SIGTERM)
        output = attack.stdout.read()
    assert attack.returncode == 0, output
    assert re.search(r"caches: [1-9]\d+ inputs", output)
    assert f"seed {SEED}: no third outcome" in output


def test_an_attack_goes_on_where_another_ended() -> None:
    tallies = runner.run(["caches"], SEED, jobs=2, seconds=float("inf"), count=1010, first=1000)
    again = runner.Tally()
    for number in range(1000, 1010):
        runner.attempt("caches", SEED, number, again)
    assert tallies["caches"].outcomes == again.outcomes
