"""What a measurement found, as records: a table for people, JSON and a picture are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specc.lab.measure.results.ratios import Ratio, Spread


@dataclass(frozen=True)
class Figures:
    """One launch, or a whole step.

    Attributes:
        name: of the launch; ``step`` for all of them together.
        kernel: kernel that it launches, None for a step.
        programs: of its grid.
        warps: of a program.
        bytes: that it cannot do without.
        us: microseconds.
        floor_us: those of an empty launch, or of a copy of as many bytes, whichever takes longer.
        ratio: the time over the floor's.

    The last three are None where nothing could be measured.

    """

    name: str
    kernel: str | None
    programs: int
    warps: int
    bytes: int
    us: Spread | None = None
    floor_us: Spread | None = None
    ratio: Ratio | None = None


@dataclass(frozen=True)
class BucketFigures:
    """A step at one batch size, and the launches in it. ``references`` are nodes that torch computes, in the step."""

    bucket: int
    launches: tuple[Figures, ...]
    step: Figures
    references: int = 0


@dataclass(frozen=True)
class Compared:
    """A part of a step beside the same work of an engine's own kernels: their time over ours, both captured."""

    bucket: int
    work: str
    ratio: Ratio


@dataclass(frozen=True)
class HostCost:
    """What a launch of a graph of so many ``nodes`` costs the host, ``us`` microseconds."""

    nodes: int
    us: Spread


@dataclass(frozen=True)
class Measurement:
    """A program on one machine.

    Attributes:
        name: of the configuration.
        algorithm: how it drafts.
        shape: the one that was measured.
        gpu: the GPU's name, None without one.
        arch: what the machine code is for, None without any.
        versions: of specc, torch and triton, and of the driver.
        buckets: figures by batch size, ascending.
        host: what launches of graphs cost the host, by their nodes, ascending; empty without a GPU.
        against: whose kernels are on the other side, None without another side.
        compared: parts of a step beside that side's.
        remark: why nothing was compared, None where it was, or was not to be.

    """

    name: str
    algorithm: str
    shape: str
    gpu: str | None
    arch: str | None
    versions: Mapping[str, str]
    buckets: tuple[BucketFigures, ...]
    host: tuple[HostCost, ...] = ()
    against: str | None = None
    compared: tuple[Compared, ...] = ()
    remark: str | None = None

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)
