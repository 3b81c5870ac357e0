"""A bound program with its capabilities, a line for each; the wheel of a program has those lines that it needs."""

from __future__ import annotations

from .bound import BoundStep
from .collective import ShardedStep
from .moving import MovingStep
from .records import RecordedStep
from .sampled import SampledStep


class Step(
    MovingStep,
    RecordedStep,
    SampledStep,
    ShardedStep,
    BoundStep,
):
    """One program bound to an engine. Made by `Program.bind`; not thread safe."""
