"""Both sides of a step: the same results first, then their times in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specc.measure.against.ours import Ours
from specc.measure.against.parts import StepPart
from specc.measure.against.work import differences, equal
from specc.measure.results.ratios import Ratio
from specc.measure.timing import WARM_UPS, Effort, capture, pairs

if TYPE_CHECKING:  # it needs SGLang
    from specc.measure.against.sequence import Sequence

COMPARED_STEPS = 3
"""Steps that are compared, each on the state that the last one left."""


class ResultsDifferError(Exception):
    """Both sides do not compute the same, so there is nothing to time."""


def most_runs(effort: Effort) -> int:
    """More steps than ever follow each other without a reset."""
    return COMPARED_STEPS + WARM_UPS + effort.copies


def compare(ours: Ours, theirs: Sequence) -> None:
    """Several steps on both sides; afterwards both are where the timed steps start.

    Raises:
        ResultsDifferError: a result, what a forward reads, what is carried, or keys and values differ.

    """
    for step in range(COMPARED_STEPS):
        unequal = differences(ours.observed_step(), theirs.observed_step())
        for owner, buffers in ours.kv.buffers.items():
            same = [equal(mine, other) for mine, other in zip(buffers, theirs.kv[owner], strict=True)]
            unequal += [] if all(same) else [f"{owner} keys and values of {same.count(False)} buffers"]
        if unequal:
            raise ResultsDifferError(f"results differ in step {step} ({', '.join(unequal)})")
    ours.work.settle({name: ours.pool(name) for name in ours.work.pools})
    ours.reset()
    theirs.reset()


def finish_a_step(ours: Ours, theirs: Sequence) -> None:
    """What every part starts from."""
    ours.reset()
    theirs.reset()
    ours.step()
    theirs.step()


def captured(part: StepPart, ours: Ours, theirs: Sequence, effort: Effort) -> tuple[Ratio, torch.cuda.CUDAGraph]:
    """Their captured graph over ours, taken in turn, and ours."""
    finish_a_step(ours, theirs)
    mine, other = capture(ours.queueing(part.launches), effort.copies), capture(part.theirs, effort.copies)
    us, them = pairs(mine.replay, other.replay, effort.samples, (ours.reset, theirs.reset))
    return Ratio.of(them, us), mine
