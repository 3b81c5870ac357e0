"""How long decode steps take on this machine, by shape and bucket: a policy of shapes weighs acceptance against it."""

from __future__ import annotations

import time

import torch

from specc.engine.engine import Engine
from specc.runtime import AcceptanceShape
from specc.runtime.capabilities.shape import StepTimes
from specc.runtime.plan.shape import Shape

WARM = 2
"""Steps before any is timed: the first ones compile, allocate or load."""


def step_times(engine: Engine, *, repeats: int = 8) -> StepTimes:
    """Run steps on padding rows alone, which change nothing, and time them.

    Attention reads a single row of keys there, so times are those of short texts.

    Args:
        engine: its steps are timed; it may have requests, and counts none of these steps.
        repeats: timed steps of each shape and bucket.

    Returns:
        Milliseconds of a decode step, by shape and bucket.

    Raises:
        ValueError: the program's logits are sharded over ranks, which may not choose by times of their own.

    """
    if engine.plan.ranks > 1:
        raise ValueError("ranks choose a shape alike, and their times differ")
    return {
        shape: {bucket: _milliseconds(engine, shape, bucket, repeats) for bucket in plan.buckets}
        for shape, plan in engine.program.plans.items()
    }


def choose_by_times(engine: Engine) -> None:
    """Choose shapes by acceptance and by how long steps take here from now on; see `step_times`."""
    engine.shape = AcceptanceShape(list(engine.program.plans), times=step_times(engine))


def _milliseconds(engine: Engine, shape: Shape, bucket: int, repeats: int) -> float:
    """Milliseconds of one step: the mean of those that are queued behind each other."""
    for _ in range(WARM):
        engine.decode((), shape, bucket)
    _wait(engine)
    start = time.perf_counter()
    for _ in range(repeats):
        engine.decode((), shape, bucket)
    _wait(engine)
    return (time.perf_counter() - start) * 1e3 / repeats


def _wait(engine: Engine) -> None:
    if engine.target.device.type == "cuda":
        torch.cuda.synchronize(engine.target.device)
