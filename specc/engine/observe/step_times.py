"""How long decode steps take on this machine, by depth and bucket: a policy of depths weighs acceptance against it."""

from __future__ import annotations

import time

import torch

from specc.engine.engine import Engine
from specc.runtime import AcceptanceDepth
from specc.runtime.capabilities.depth import StepTimes

WARM = 2
"""Steps before any is timed: the first ones compile, allocate or load."""


def step_times(engine: Engine, *, repeats: int = 8) -> StepTimes:
    """Run steps on padding rows alone, which change nothing, and time them.

    Attention reads a single row of keys there, so times are those of short texts.

    Args:
        engine: its steps are timed; it may have requests, and counts none of these steps.
        repeats: timed steps of each depth and bucket.

    Returns:
        Milliseconds of a decode step, by num_steps and bucket.

    Raises:
        ValueError: the program's logits are sharded over ranks, which may not choose by times of their own.

    """
    if engine.plan.ranks > 1:
        raise ValueError("ranks choose a depth alike, and their times differ")
    return {
        num_steps: {bucket: _milliseconds(engine, num_steps, bucket, repeats) for bucket in plan.buckets}
        for num_steps, plan in engine.program.plans.items()
    }


def choose_by_times(engine: Engine) -> None:
    """Choose depths by acceptance and by how long steps take here from now on; see `step_times`."""
    engine.depth = AcceptanceDepth(list(engine.program.plans), times=step_times(engine))


def _milliseconds(engine: Engine, num_steps: int, bucket: int, repeats: int) -> float:
    """Milliseconds of one step: the mean of those that are queued behind each other."""
    for _ in range(WARM):
        engine.decode((), num_steps, bucket)
    _wait(engine)
    start = time.perf_counter()
    for _ in range(repeats):
        engine.decode((), num_steps, bucket)
    _wait(engine)
    return (time.perf_counter() - start) * 1e3 / repeats


def _wait(engine: Engine) -> None:
    if engine.target.device.type == "cuda":
        torch.cuda.synchronize(engine.target.device)
