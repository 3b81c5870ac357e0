"""Runs compute-sanitizer over every kernel and over captured steps, on a GPU: what `make sanitize` does.

A piece is a test file, or some of its tests, under one of the tools; pieces are processes of their own and run side by
side. A piece is clean when its tests pass to the end and the tool reports nothing. Before the first tool the pieces run
without one, so that kernels are compiled once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = {
    "memcheck": ("--padding", "64", "--report-api-errors", "no"),  # the driver's functions are asked for by trial
    "racecheck": ("--racecheck-report", "all"),
    "synccheck": (),
    "initcheck": ("--check-api-memory-access", "no"),  # results come to the host in one copy, gaps between them too
}
"""The tools, and what else each is told."""
INTERPRETED = ("test_far_rows", "test_reads")
"""Files that look at how kernels are interpreted, and run nothing on a GPU."""
FOUND = 86
"""The exit status of a piece in which a tool found something."""
STEPS = {
    "machine code": ("tests/gpu/test_kernels.py", "toys"),
    "captured chain": ("tests/gpu/test_capture.py", "is_the_default and toy_eagle]"),
    "captured tree": ("tests/gpu/test_capture.py", "is_the_default and toy_tree_paged]"),
    "segments": ("tests/gpu/test_segments.py", "are_the_default and toy_eagle]"),
}
"""Pieces that need wheels, by name: the file, and which of its tests."""


@dataclass(frozen=True)
class Piece:
    """Tests to run in a process of their own."""

    name: str
    path: str
    only: str = ""

    def command(self) -> list[str]:
        """Run it, without a tool."""
        chosen = ["-k", self.only] if self.only else []
        return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", self.path, *chosen]


@dataclass(frozen=True)
class Outcome:
    """What became of a piece: `tests` that passed, seconds, what was found, and where its output is."""

    piece: Piece
    tool: str
    passed: int
    seconds: float
    fault: str
    log: Path


def pieces() -> list[Piece]:
    """Every file of kernel tests that a GPU runs, and the steps."""
    kernels = sorted((ROOT / "tests" / "kernels").glob("test_*.py"))
    chosen = [path for path in kernels if path.stem not in INTERPRETED and "launcher" in path.read_text("utf-8")]
    files = [Piece(path.stem.removeprefix("test_"), str(path.relative_to(ROOT))) for path in chosen]
    return [*files, *(Piece(name, path, only) for name, (path, only) in STEPS.items())]


def run(piece: Piece, tool: str, logs: Path, limit: float) -> Outcome:
    """Run one piece under a tool, or under none for an empty name."""
    log = logs / f"{tool or 'plain'}-{piece.name.replace(' ', '-')}.log"
    checker = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), *TOOLS[tool]] if tool else []
    env = {**os.environ, "SPECC_TEST_GPU": "1", "CUDA_MODULE_LOADING": "LAZY"}
    if tool and piece.name not in STEPS:
        env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # every tensor is memory of its own, with bounds
    started = time.monotonic()
    with log.open("wb") as out:
        try:
            command = [*checker, *piece.command(), *([] if tool else ["-n", "4"])]
            status = subprocess.run(
                command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, timeout=limit, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    text = log.read_text(encoding="utf-8", errors="replace")
    ended = re.search(r"(\d+) passed", text)
    fault = ""
    if status is None:
        fault = f"not at its end after {limit:.0f} s"
    elif status == FOUND:
        fault = (re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", text) or ["something was found"])[0]
    elif status != 0 or ended is None:
        fault = f"its tests ended with status {status}"
    elif tool and "SUMMARY: 0" not in text:
        fault = "the tool reported no end"
    return Outcome(piece, tool, int(ended[1]) if ended else 0, time.monotonic() - started, fault, log)


def run_all(chosen: Iterable[Piece], tools: Iterable[str], logs: Path, jobs: int, limit: float) -> list[Outcome]:
    """Run pieces side by side under each of the tools, and tell of each when it ends."""

    def report(case: tuple[str, Piece]) -> Outcome:
        outcome = run(case[1], case[0], logs, limit)
        counts = f"{outcome.passed:5} passed {outcome.seconds:5.0f} s"
        print(f"{case[0] or 'no tool':10} {outcome.piece.name:16} {counts}  {outcome.fault or 'clean'}", flush=True)
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(report, product(tools, chosen)))


def main() -> int:
    """Run what the command line asks for; 1 if any piece is not clean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tools", nargs="*", default=list(TOOLS), help=f"of {', '.join(TOOLS)}; by default all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=400, help="seconds for a piece")
    parser.add_argument("--only", default="", help="pieces whose name has this regular expression in it")
    parser.add_argument("--cold", action="store_true", help="do not run them without a tool first")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "sanitize")
    given = parser.parse_args()
    if unknown := sorted(set(given.tools) - set(TOOLS)):
        parser.error(f"no tool {unknown[0]!r}; there are {', '.join(TOOLS)}")
    if shutil.which("compute-sanitizer") is None:
        parser.error("compute-sanitizer is not on the PATH: it comes with the CUDA toolkit")
    given.logs.mkdir(parents=True, exist_ok=True)
    chosen = [piece for piece in pieces() if re.search(given.only, piece.name)]
    outcomes = [] if given.cold else run_all(chosen, [""], given.logs, given.jobs, given.limit)
    # What takes the longest starts first: racecheck of all tools, and the pieces that took the longest without one.
    if outcomes:
        chosen = [outcome.piece for outcome in sorted(outcomes, key=lambda outcome: -outcome.seconds)]
    tools = sorted(given.tools, key=lambda tool: tool != "racecheck")
    outcomes += run_all(chosen, tools, given.logs, given.jobs, given.limit)
    bad = [outcome for outcome in outcomes if outcome.fault]
    for outcome in bad:
        print(f"{outcome.tool} {outcome.piece.name}: {outcome.fault}; see {outcome.log}")
    print(f"{len(outcomes) - len(bad)} of {len(outcomes)} clean")
    return bool(bad) or not outcomes


if __name__ == "__main__":
    sys.exit(main())
