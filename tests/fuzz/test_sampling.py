"""How requests are sampled: every wrong way is refused by name, and every request says it anew, at any depth."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

from specc.runtime.batch import Batch
from specc.runtime.errors import SamplingError

from . import bound, sampling, sessions, steps
from .ranking import log_probability
from .test_fuzz import SEED


def session(number: int, *, samples: bool, depths: int = 1) -> steps.Session:
    """A session of one of the programs that sample, or of those that do not, of so many depths at least."""
    programs = (bound.program(f"sampling/{SEED}/{i}") for i in range(100))
    able = [program for program in (next(programs) for _ in range(40)) if isinstance(program, bound.Compiled)]
    able = [program for program in able if program.plan.samples == samples and len(program.plans) >= depths]
    return sessions.session_of(able[number % len(able)], random.Random(number))


@pytest.mark.parametrize("samples", [False, True])
def test_wrong_ways_are_refused(samples: bool) -> None:
    """Nothing is written, not even the seed of the one before the wrong one."""
    for number in range(4):
        decoding = session(number, samples=samples)
        decoding.admit(2)
        for _ in range(60):
            decoding.refuse_sampling()


def test_log_probabilities_are_of_f32() -> None:
    """As torch's own: two logits may be further apart than any f32."""
    for row in ([3e38, -3e38, 0.0], [3e38, 3e38, -1e38], [0.5, 2.0, -1.0]):
        wanted = torch.tensor(row).log_softmax(0).tolist()
        assert [log_probability(row, token) for token in range(3)] == pytest.approx(wanted, rel=1e-6)


def test_every_request_says_it_anew() -> None:
    """What was said of a row is for one prefill, at whatever depth."""
    for number in range(6):
        decoding = session(number, samples=True, depths=1 + number % 2)
        decoding.admit(2)
        rows = list(range(1, min(len(decoding.table), decoding.largest + 1)))
        given = [sampling.legal(decoding.rng) for _ in rows]
        batch = Batch(
            rows, [1] * len(rows), [0] * len(rows) if "prompt_tokens" in decoding.plan.reads("prefill") else None
        )
        decoding.engine.prompts = {row: [0] for row in rows}
        for plan in decoding.compiled.plans:
            decoding.step.set_sampling(rows, given)
            decoding.step.at(plan.shape).prefill(batch)
            for depth in decoding.compiled.plans:
                again = partial(decoding.step.at(depth.shape).prefill, batch)
                decoding._refused(again, "prefilled twice", SamplingError)
