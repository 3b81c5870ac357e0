"""Both sides of a step: the same results first, then their times in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specc.lab.measure.against.parts import StepPart
from specc.lab.measure.against.program_launches import ProgramLaunches
from specc.lab.measure.against.work import differences, equal
from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.timing import WARM_UPS, Effort, capture, pairs

if TYPE_CHECKING:  # it needs SGLang
    from specc.lab.measure.against.sequence import Sequence

COMPARED_STEPS = 3
"""Steps that are compared, each on the state that the last one left."""


class ResultsDifferError(Exception):
    """Both sides do not compute the same, so there is nothing to time."""


def most_runs(effort: Effort) -> int:
    """More steps than ever follow each other without a reset."""
    return COMPARED_STEPS + WARM_UPS + effort.copies


def compare(program: ProgramLaunches, sglang: Sequence) -> None:
    """Several steps on both sides; afterwards both are where the timed steps start.

    Raises:
        ResultsDifferError: a result, what a forward reads, what is carried, or keys and values differ.

    """
    for step in range(COMPARED_STEPS):
        unequal = differences(program.observed_step(), sglang.observed_step())
        for owner, buffers in program.kv.buffers.items():
            same = [equal(mine, other) for mine, other in zip(buffers, sglang.kv[owner], strict=True)]
            unequal += [] if all(same) else [f"{owner} keys and values of {same.count(False)} buffers"]
        if unequal:
            raise ResultsDifferError(f"results differ in step {step} ({', '.join(unequal)})")
    program.work.settle({name: program.pool(name) for name in program.work.pools})
    program.reset()
    sglang.reset()


def finish_a_step(program: ProgramLaunches, sglang: Sequence) -> None:
    """What every part starts from."""
    program.reset()
    sglang.reset()
    program.step()
    sglang.step()


def captured(
    part: StepPart, program: ProgramLaunches, sglang: Sequence, effort: Effort
) -> tuple[Ratio, torch.cuda.CUDAGraph]:
    """SGLang's captured graph over the program's, taken in turn, and the program's."""
    finish_a_step(program, sglang)
    mine, other = capture(program.queueing(part.launches), effort.copies), capture(part.sglang, effort.copies)
    us, them = pairs(mine.replay, other.replay, effort.samples, (program.reset, sglang.reset))
    return Ratio.of(them, us), mine
