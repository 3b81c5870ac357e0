"""A bound program with its capabilities, a line for each; the wheel of a program has those lines that it needs."""

from __future__ import annotations

from .bound import BoundStep
from .capabilities.collective import ShardedStep
from .capabilities.draft_tables import DraftTablesStep
from .capabilities.moving import MovingStep
from .capabilities.records import RecordedStep
from .capabilities.sampled import SampledStep
from .capabilities.states.fold import FoldingStep
from .capabilities.states.point import PointingStep
from .capabilities.states.select import SelectingStep


class Step(
    FoldingStep,
    PointingStep,
    SelectingStep,
    DraftTablesStep,
    MovingStep,
    RecordedStep,
    SampledStep,
    ShardedStep,
    BoundStep,
):
    """One program bound to an engine. Made by `Program.bind`; not thread safe."""
