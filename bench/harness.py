"""What every benchmark of a step's glue does: compare both sides, then time their parts against each other.

Import it before anything that imports Triton: without a GPU it asks for Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
    warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning)  # exp(-inf) is meant to be 0

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ours import TritonBackend, compile_shape

from specc.measure.against import compare
from specc.measure.against.ours import Ours
from specc.measure.against.parts import Part, Run
from specc.measure.against.sequence import Sequence as Baseline
from specc.measure.against.work import Shape
from specc.measure.backends import cuda_backend
from specc.measure.ratios import Ratio
from specc.measure.timing import Effort, Floors, capture, nothing, pairs
from specc.runtime.backends import Backend
from specc.runtime.plan.plan import Plan

Sides: TypeAlias = tuple[Ours, Baseline]
Sized: TypeAlias = tuple[Part, tuple[int, ...]]
"""A part of a step, and the bytes that each of our launches in it has to move."""
Case: TypeAlias = dict[str, int]
"""The columns that tell the lines of one part apart."""


@dataclass(frozen=True)
class Line:
    """One line of the report.

    Attributes:
        captured: their captured graph over ours.
        replay: their eager launches over one replay of ours.
        floor: ours over its floor.
    """

    work: str
    case: Case
    captured: Ratio
    replay: Ratio
    floor: Ratio

    def cells(self) -> tuple[str, ...]:
        """As text, in the order of the table."""
        return (self.work, *map(str, self.case.values()), str(self.captured), str(self.replay), str(self.floor))

    def record(self) -> dict[str, object]:
        """As JSON."""
        ratios = {name: vars(getattr(self, name)) for name in ("captured", "replay", "floor")}
        return {"work": self.work, **self.case, **ratios}


@dataclass(frozen=True)
class Benchmark:
    """One program with its cases.

    Attributes:
        sides: both sides of every case, ready to run; `jit` asks for Triton's own compiler.
        parts: what is timed of them.
        case: what tells their lines apart.
        effort: how often.

    """

    sides: Callable[[torch.device, bool], Iterator[Sides]]
    parts: Callable[[Ours, Baseline], Sequence[Sized]]
    case: Callable[[Shape], Case]
    effort: Effort


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of every benchmark: --json, --check-only."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, help="write the ratios here too")
    made.add_argument("--check-only", action="store_true", help="compare results, time nothing")
    return made


def device() -> torch.device:
    """Where programs run."""
    return torch.device("cuda", torch.cuda.current_device()) if ON_GPU else torch.device("cpu")


def main(benchmark: Benchmark, description: str, against: str) -> None:
    """Compare, then time if there is a GPU."""
    accepted = parser(description)
    accepted.add_argument("--jit", action="store_true", help="Triton's own compiler instead of ahead-of-time code")
    options, where = accepted.parse_args(), device()
    if not ON_GPU:
        print("no CUDA device: comparing results in Triton's interpreter, timing nothing")
    print(f"against: {against}")
    floors = Floors(where, benchmark.effort) if ON_GPU and not options.check_only else None
    lines: list[Line] = []
    for ours, theirs in benchmark.sides(where, options.jit):
        case = benchmark.case(ours.work.shape)
        check(ours, theirs, " ".join(f"{name}={value}" for name, value in case.items()))
        if floors is not None:
            parts = benchmark.parts(ours, theirs)
            lines += [line(part, floors.run(sizes), case, ours, theirs, benchmark.effort) for part, sizes in parts]
    if lines:
        report(lines, against, options.json)


@contextmanager
def compiled(
    shape: Shape, buckets: Sequence[int], device: torch.device, *, jit: bool, keys: str = ""
) -> Iterator[tuple[Plan, Backend]]:
    """A program for the shape, and what launches its kernels: machine code on a GPU, unless `jit`."""
    build = compile_shape(shape, buckets, keys=keys)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        backend = cuda_backend(build, root, device) if ON_GPU and not jit else TritonBackend(build, root)
        yield build.plan, backend


def check(ours: Ours, theirs: Baseline, label: str) -> None:
    """Stop unless both sides give the same results, over several steps, and leave the same keys and values."""
    try:
        compare.compare(ours, theirs)
    except compare.ResultsDifferError as error:
        raise SystemExit(f"{label}: {error}; nothing is reported") from error
    print(f"{label}: same results over {compare.COMPARED_STEPS} steps", flush=True)


def line(part: Part, least: Run, case: Case, ours: Ours, theirs: Baseline, effort: Effort) -> Line:
    """Captured against captured, eager against one replay, ours against its floor."""
    ratio, our_graph = compare.captured(part, ours, theirs, effort)
    ours.reset()
    theirs.reset()
    replay, eager = pairs(capture(part.ours, 1).replay, part.theirs, effort.samples, (ours.reset, theirs.reset))
    floor = capture(least, effort.copies)
    again, least_times = pairs(our_graph.replay, floor.replay, effort.samples, (ours.reset, nothing))
    return Line(part.work, case, ratio, Ratio.of(eager, replay), Ratio.of(again, least_times))


def report(lines: list[Line], against: str, path: Path | None) -> None:
    """Print the table, write the file."""
    rows = [("work", *lines[0].case, "captured/captured", "eager/replay", "ours/floor")]
    rows += [item.cells() for item in lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if path is not None:
        record = {"against": against, "device": torch.cuda.get_device_name(), "torch": torch.__version__}
        path.write_text(json.dumps(record | {"ratios": [item.record() for item in lines]}, indent=2) + "\n")
