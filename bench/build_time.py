"""How long the command line takes, how large a wheel is, how long it takes to import: each beside its target.

    python bench/build_time.py [CONFIG] [--arch ARCH] [--runs N]

Every command runs in a process of its own. Times are the median of N runs (a cold build: one run) on whatever machine
this is; the targets are for two cores that do nothing else.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]

IMPORT = """\
import sys, time
sys.path.insert(0, sys.argv[1])
import torch
start = time.perf_counter()
package = __import__(sys.argv[2])
package.load, package.plan, package.Batch
print(time.perf_counter() - start)
"""
LOAD = """\
import sys, time
sys.path.insert(0, sys.argv[1])
import torch
if not torch.cuda.is_available():
    print("nan")
else:
    torch.zeros(1, device="cuda")
    package = __import__(sys.argv[2])
    start = time.perf_counter()
    package.load("cuda")
    torch.cuda.synchronize()
    print(time.perf_counter() - start)
"""


@dataclass(frozen=True)
class Figure:
    """One measurement, in `unit`, and the most it should be."""

    what: str
    value: float
    target: float
    unit: str = "s"

    def row(self) -> tuple[str, str, str, str]:
        """The cells of a line of the table."""
        if self.value != self.value:
            return self.what, "no GPU", f"{self.target:g} {self.unit}", ""
        verdict = "yes" if self.value <= self.target else "no"
        return self.what, f"{self.value:.3g} {self.unit}", f"{self.target:g} {self.unit}", verdict


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, nargs="?", default=ROOT / "examples" / "eagle-chain.yaml")
    parser.add_argument("--arch", default="sm_90", help="the one architecture to build for")
    parser.add_argument("--runs", type=int, default=5, help="runs of everything but the cold build")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options.config.resolve(), options.arch, options.runs, Path(folder))
    rows = [("what", "measured", "target", "reached"), *(figure.row() for figure in figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def measure(config: Path, arch: str, runs: int, folder: Path) -> list[Figure]:
    """Every figure, in the order of the table."""
    out, site = folder / "out", folder / "site"
    build = ("build", str(config), "--arch", arch, "-o", str(out), "--quiet")
    # The first run of anything reads the disk and compiles bytecode: not what is asked about.
    specc("--help")
    cache = {"SPECC_CACHE_DIR": str(folder / "cache")}
    figures = [
        Figure("specc --help", median(runs, "--help"), 0.2),
        Figure(f"specc check {config.name}", median(runs, "check", str(config)), 0.5),
        Figure(f"specc build, {arch}, cold", specc(*build, more=cache), 15.0),
        Figure(f"specc build, {arch}, warm", median(runs, *build, more=cache), 1.0),
    ]
    (wheel,) = out.rglob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(site)
    package = wheel.name.partition("-")[0]
    imported, loaded = (
        statistics.median(float(python(text, str(site), package)) for _ in range(runs)) for text in (IMPORT, LOAD)
    )
    return [
        *figures,
        Figure("wheel", wheel.stat().st_size / 2**20, 2.0, "MiB"),
        Figure("import of the wheel, beyond torch", 1000 * imported, 50.0, "ms"),
        Figure("load on a GPU", 1000 * loaded, 200.0, "ms"),
    ]


def median(runs: int, *arguments: str, more: Mapping[str, str] | None = None) -> float:
    """Median wall time of a command, in seconds."""
    return statistics.median(specc(*arguments, more=more) for _ in range(runs))


def specc(*arguments: str, more: Mapping[str, str] | None = None) -> float:
    """Wall time of one `specc` command, in seconds, the start of Python included."""
    started = time.perf_counter()
    run([sys.executable, "-m", "specc.cli.main", *arguments], more or {})
    return time.perf_counter() - started


def python(program: str, *arguments: str) -> str:
    """The output of a Python program."""
    return run([sys.executable, "-c", program, *arguments], {})


def run(command: Sequence[str], more: Mapping[str, str]) -> str:
    """Run a command; SystemExit with its messages when it fails."""
    environment = {**os.environ, **more}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
