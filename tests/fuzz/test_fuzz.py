"""A part of the attack, the same in every run: no input has a third outcome."""

from __future__ import annotations

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
    "prompts": 40,
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
