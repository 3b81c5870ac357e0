"""How long steps take on the machine at hand, by shape and bucket: measured, and kept in a file."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import torch

from ..batch import Batch
from ..bound import BoundStep
from ..errors import DamagedWheelError, StepTimesError
from ..plan.files.manifest import Manifest, read_packaged
from ..plan.shape import Shape, listed, named
from ..plan.typed import from_json, read_json, to_json
from .shape import ShapeBuckets, StepTimes

WARM = 2
"""Steps before any is timed: the first ones compile, allocate or load."""
REPEATS = 8
"""Steps of a shape in a bucket that are timed."""
UNIT = "ms"
MOST_BYTES = 1 << 20
"""The most bytes of a file: 16 shapes in 64 buckets take 20 KiB."""

Run = Callable[[Shape, int], object]
"""Queues one step of a shape in a bucket, all of whose rows are padding."""


class LoadedTimes(Protocol):
    """What a file says of a loaded program."""

    @property
    def manifest(self) -> Manifest:
        """What the wheel holds, its name and version among them."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        ...


@dataclass(frozen=True)
class Measured:
    """What a file of step times says.

    Attributes:
        program: what was measured, its name and version; for people.
        gpu: where, or `cpu`; for people.
        engine: in what, with its version; for people.
        unit: of all times, `ms`.
        times: by name of the shape and bucket.

    """

    program: str
    gpu: str
    engine: str
    unit: str
    times: Mapping[str, Mapping[int, float | int]]


def measure_step_times(step: BoundStep, run: Run | None = None, *, repeats: int = REPEATS) -> StepTimes:
    """Time steps whose rows are all padding, which change no row of a request, captured or not.

    Attention reads a single row of keys there, so times are those of short texts. On a GPU they lie between events on
    the current stream, and nobody waits before the last step of a shape in a bucket is queued: where the host takes
    longer than the GPU, it is the host's time. The ranks of a program of several measure together, and their times
    differ: they choose alike only by the times of one of them.

    Args:
        step: the bound program; its shapes are timed, each in all of its buckets.
        run: queues one step, for engines whose forwards need more than a call of `decode`, and for those that run the
            target themselves; by default `decode` of an empty batch.
        repeats: steps of each shape and bucket that are timed; the median counts.

    Returns:
        Milliseconds of a decode step, by shape and bucket.

    Raises:
        ValueError: fewer than one step is to be timed.
        SpeccError: as `decode`.

    """
    if repeats < 1:
        raise ValueError(f"{repeats} steps are to be timed")

    def padding(shape: Shape, bucket: int) -> object:
        return step.at(shape).decode(Batch([], []), at_least=bucket)

    with torch.cuda.device(step.device) if step.device.type == "cuda" else nullcontext():
        return {
            shape: {bucket: _median(partial(run or padding, shape, bucket), step.device, repeats) for bucket in buckets}
            for shape, buckets in step.buckets.items()
        }


def _median(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    for _ in range(WARM):
        run()
    return statistics.median((_on_gpu if device.type == "cuda" else _on_cpu)(run, repeats))


def _on_gpu(run: Callable[[], object], repeats: int) -> list[float]:
    """Milliseconds from the end of each step to the end of the next, all of them queued behind each other."""
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    ends[0].record()
    for end in ends[1:]:
        run()
        end.record()
    ends[-1].synchronize()
    return [before.elapsed_time(after) for before, after in pairwise(ends)]


def _on_cpu(run: Callable[[], object], repeats: int) -> Iterator[float]:
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        yield (time.perf_counter() - start) * 1e3


def write_step_times(path: Path, times: StepTimes, program: LoadedTimes, *, engine: str) -> None:
    """Write times of a program, in milliseconds, for `read_step_times`; OSError where that is not possible.

    `engine` says what ran the steps, with its version.
    """
    device = program.device
    content = Measured(
        program=f"{program.manifest.name} {program.manifest.version}",
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        engine=engine,
        unit=UNIT,
        times={str(shape): dict(sorted(by_bucket.items())) for shape, by_bucket in sorted(times.items())},
    )
    path.write_text(json.dumps(to_json(content), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_step_times(path: Path, buckets: ShapeBuckets) -> StepTimes:
    """The times in a file of `write_step_times`, for a program of shapes with these buckets.

    The file has every shape, and of each shape any of its buckets, at least one. StepTimesError when it does not, or is
    of other shapes or buckets; is missing, no regular file, larger than a MiB, no JSON with every key once, or without
    one of its keys; or has a time that is not finite and above 0.
    """
    try:
        measured = from_json(Measured, read_json(read_packaged(path.parent, path.name, MOST_BYTES)), "the file")
        return _of(measured, buckets)
    except DamagedWheelError as error:
        raise StepTimesError(str(error)) from error
    except (TypeError, ValueError) as error:
        raise StepTimesError(f"{path.name}: {error}") from error


def _of(measured: Measured, buckets: ShapeBuckets) -> StepTimes:
    """The times by shape. ValueError as `read_step_times`."""
    if measured.unit != UNIT:
        raise ValueError(f"the unit is {measured.unit!r:.80}, and not {UNIT}")
    times: dict[Shape, Mapping[int, float]] = {}
    for name, by_bucket in measured.times.items():
        shape = named(buckets, name)
        if shape is None or str(shape) != name:
            raise ValueError(f"the program has no shape {name!r:.80}; there is {listed(buckets)}")
        if unknown := sorted(by_bucket.keys() - set(buckets[shape])):
            raise ValueError(f"shape {name} has no bucket {unknown[0]}; there is {', '.join(map(str, buckets[shape]))}")
        if wrong := [time for time in by_bucket.values() if not 0 < time < math.inf]:
            raise ValueError(f"shape {name} takes {wrong[0]} {UNIT}, and a time is above 0")
        times[shape] = by_bucket
    if lacking := [shape for shape in buckets if not times.get(shape)]:
        raise ValueError(f"it has no times of shape {listed(lacking)}")
    return times
