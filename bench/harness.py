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

import baseline
from ours import Ours, TritonBackend, compile_shape
from work import Shape, differences, equal

from specc.measure.backends import cuda_backend
from specc.measure.ratios import Ratio
from specc.measure.timing import WARM_UPS, Effort, Floors, Run, capture, nothing, pairs
from specc.runtime.backends import Backend
from specc.runtime.plan.plan import Plan

COMPARED_STEPS = 3
"""Steps that are compared, each on the state that the last one left."""


@dataclass(frozen=True)
class Part:
    """A part of a step on both sides, and the bytes that each of our launches in it has to move."""

    work: str
    ours: Run
    theirs: Run
    launch_bytes: tuple[int, ...]


Sides: TypeAlias = tuple[Ours, baseline.Sequence]
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
    parts: Callable[[Ours, baseline.Sequence], Sequence[Part]]
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
            lines += [line(part, case, ours, theirs, floors, benchmark.effort) for part in parts]
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


def most_runs(effort: Effort) -> int:
    """More steps than ever follow each other without a reset."""
    return COMPARED_STEPS + WARM_UPS + effort.copies


def check(ours: Ours, theirs: baseline.Sequence, label: str) -> None:
    """Stop unless both sides give the same results, over several steps, and leave the same keys and values."""
    for step in range(COMPARED_STEPS):
        found = differences(ours.observed_step(), theirs.observed_step())
        for owner, buffers in ours.kv.buffers.items():
            same = [equal(mine, other) for mine, other in zip(buffers, theirs.kv[owner], strict=True)]
            found += [] if all(same) else [f"{owner} keys and values of {same.count(False)} buffers"]
        if found:
            raise SystemExit(f"{label}: results differ in step {step} ({', '.join(found)}); nothing is reported")
    print(f"{label}: same results over {COMPARED_STEPS} steps", flush=True)
    ours.work.settle({name: ours.pool(name) for name in ours.work.pools})
    ours.reset()
    theirs.reset()


def line(part: Part, case: Case, ours: Ours, theirs: baseline.Sequence, floors: Floors, effort: Effort) -> Line:
    """Captured against captured, eager against one replay, ours against its floor."""

    def reset() -> None:
        ours.reset()
        theirs.reset()

    reset()
    ours.step()  # every part starts from a finished step
    theirs.step()
    our_graph, their_graph = capture(part.ours, effort.copies), capture(part.theirs, effort.copies)
    us, them = pairs(our_graph.replay, their_graph.replay, effort.samples, (ours.reset, theirs.reset))
    reset()
    replay, eager = pairs(capture(part.ours, 1).replay, part.theirs, effort.samples, (ours.reset, theirs.reset))
    floor = capture(floors.run(part.launch_bytes), effort.copies)
    again, least = pairs(our_graph.replay, floor.replay, effort.samples, (ours.reset, nothing))
    return Line(part.work, case, Ratio.of(them, us), Ratio.of(eager, replay), Ratio.of(again, least))


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
