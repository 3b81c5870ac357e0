"""SGLang's own step against a program's in the same server.

    compare.py --models DIR --programs DIR --out DIR [--budget SECONDS] [--limit SECONDS] [--jobs N] [VARIANT ...]

DIR of --programs has a folder per program, in which its wheel is unpacked. For every variant (all of variants.py by
default; a name with * stands for all that match) one server is started in which the program is installed. It is
switched off and on in turn: decode steps are SGLang's own ("stock"), then the program's ("specc"). With --apart SGLang
runs as it is, then with the program, each engine in a process of its own. Results that are in --out already are kept,
so that a call that ran out of time can be repeated. With --jobs N, N variants run at a time, on the GPUs that --gpus
counts: for times no more than one on a GPU. Variants of several ranks see all GPUs, and want --jobs 1.
Results: OUT/comparison.json, OUT/comparison.md, OUT/runs. Ends with 1 when an engine failed, or was not started for
want of time, or when something is not the same on both sides that must be (see report.py).
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import Queue
from typing import Any

import report
from variant import Variant
from variants import VARIANTS

HERE = Path(__file__).resolve().parent
SIDES = ("stock", "specc")
LEAST = 25
"""Seconds below which no engine is started."""
ROOM = 64
"""KV slots of a request beyond its text."""
Result = dict[str, Any]


@dataclass(frozen=True)
class Points:
    """What is timed, and traced: lengths of prompts, batch sizes."""

    contexts: tuple[int, ...] = (1024, 8192)
    batches: tuple[int, ...] = (1, 8, 32, 64)
    traced: tuple[int, ...] = (1, 32)

    def of(self, variant: Variant, tokens: int) -> list[list[int]]:
        """[context, batch] of all that a server has KV slots for, when each request generates so many tokens."""
        slots, rows = variant.models.tokens, max(variant.models.rows)
        every = [[context, batch] for context in self.contexts for batch in self.batches]
        return [[c, b] for c, b in every if b <= rows and b * (c + tokens + ROOM) <= slots]


@dataclass(frozen=True)
class Session:
    """Where things are, and how long the session may take."""

    models: Path
    programs: Path
    out: Path
    device: str
    deadline: float
    limit: float
    overrides: dict[str, Any]
    gpus: Queue[str]
    points: Points = Points()
    apart: bool = False

    def runs(self, variant: Variant) -> list[tuple[str, ...]]:
        """The sides of each engine that is started, one after the other."""
        if not variant.program:
            return [SIDES[:1]]
        return [(side,) for side in SIDES] if self.apart else [SIDES]

    def path(self, variant: Variant, sides: Iterable[str], suffix: str) -> Path:
        """A file of one run."""
        return self.out / "runs" / f"{variant.name}.{'+'.join(sides)}.{suffix}"

    def results(self, variant: Variant) -> dict[str, Result]:
        """By side what its run left; "error" where there is none."""
        by_sides = {sides: self.result(variant, sides) for sides in self.runs(variant)}
        parts = {side: run for sides, run in by_sides.items() for side in sides}
        return {
            side: {key: run[key] for key in run if key not in SIDES} | run.get(side, {}) for side, run in parts.items()
        }

    def result(self, variant: Variant, sides: tuple[str, ...]) -> Result:
        """What a run left; "error" where there is none."""
        return left_in(self.path(variant, sides, "json"))

    @cached_property
    def prompts(self) -> list[list[int]]:
        """What is asked where texts count."""
        from prompts import text_prompts

        return text_prompts(self.models / "ex_target")


def left_in(result: Path) -> Result:
    """What a run left in a file; "error" where there is none."""
    try:
        return json.loads(result.read_text())
    except (OSError, ValueError):
        return {"error": "not run"}


def run_variant(session: Session, variant: Variant) -> None:
    """All its engines, one after the other."""
    gpu = session.gpus.get()
    try:
        for sides in session.runs(variant):
            if "error" in session.result(variant, sides):
                run_engine(session, variant, sides, gpu)
    finally:
        session.gpus.put(gpu)


def run_engine(session: Session, variant: Variant, sides: tuple[str, ...], gpu: str) -> None:
    """One engine, and what each side does in it."""
    label = f"{variant.name} {'+'.join(sides)}"
    result, job = (session.path(variant, sides, suffix) for suffix in ("json", "job"))
    result.unlink(missing_ok=True)
    program = session.programs / variant.program if "specc" in sides and variant.program else None
    if program and not program.is_dir():
        result.write_text(json.dumps({"error": f"there is no program {program}"}))
        say(f"{label}: there is no program {program}")
        return
    job.write_text(json.dumps(make_job(session, variant, sides, program)))
    run_job(session, label, "one.py", job, environment(session, variant, program, gpu))


def run_job(session: Session, label: str, script: str, job: Path, settings: dict[str, str]) -> None:
    """Run a script of this folder for a job, while there is time; result and log lie beside the job."""
    result, log, left = job.with_suffix(".json"), job.with_suffix(".log"), session.deadline - time.monotonic()
    if left < LEAST:
        say(f"{label}: not started, out of time")
        return
    begin = time.monotonic()
    command = [sys.executable, str(HERE / script), str(result), str(job)]
    code = run_process(command, settings, log, min(left, session.limit))
    say(f"{label}: exit status {code} after {time.monotonic() - begin:.0f} s")
    if code:
        kept = left_in(result)
        reason = "ran past its limit" if code == -9 else f"exit status {code}"
        result.write_text(json.dumps(kept | {"error": kept.get("error", "").replace("not run", "") or reason}))
        say("".join(log.read_text(errors="replace").splitlines(keepends=True)[-25:]))


def run_process(command: list[str], settings: dict[str, str], log: Path, limit: float) -> int:
    """Exit status; a process that runs past its limit is killed with all that it started, and gives -9."""
    with log.open("w") as file:
        process = subprocess.Popen(command, env=settings, stdout=file, stderr=file, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = -9
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)  # SGLang's own processes, where it left any
        process.wait()
        return code


def make_job(session: Session, variant: Variant, sides: Iterable[str], program: Path | None) -> Result:
    """What one.py is asked."""
    job: Result = {
        "engine": variant.engine(session.models, session.device),
        "environment": variant.environment(session.models),
        "sampling": dict(variant.sampling),
        "sides": list(sides),
        "plan": str(program / program.name / "plan.json") if program else None,
        "traces": str(session.out / "traces"),
    } | session.overrides
    if variant.text:
        return {"prompts": session.prompts} | job
    points = session.points.of(variant, job.get("tokens", 256))
    traced = [[c, b] for c, b in points if b in session.points.traced] if session.device == "cuda" else []
    return {"points": points, "traced": traced} | job


def environment(session: Session, variant: Variant, program: Path | None, gpu: str) -> dict[str, str]:
    """The environment of a process: a program is found on the path, and named so that nothing else can run."""
    plugins = str(Path(__file__).parent / variant.plugins) if variant.plugins else ""
    path = [os.environ.get("PYTHONPATH", ""), str(program or ""), plugins]
    settings = os.environ | {"PYTHONPATH": ":".join(filter(None, path))} | variant.environment(session.models)
    settings |= {"CUDA_VISIBLE_DEVICES": gpu} if gpu and variant.ranks == 1 else {}
    settings |= {"SGLANG_USE_CPU_ENGINE": "1"} if session.device == "cpu" else {}
    return settings | ({"SPECC_PROGRAM": program.name} if program else {})


def say(line: str) -> None:
    """At once, whoever reads."""
    print(line, flush=True)


def chosen(patterns: Iterable[str]) -> list[Variant]:
    """The variants that some names or patterns stand for, in the order of variants.py. ValueError if one has none."""
    patterns = list(patterns) or ["*"]
    if unknown := [pattern for pattern in patterns if not fnmatch.filter(VARIANTS, pattern)]:
        raise ValueError(f"no variant {', '.join(unknown)}; there are {', '.join(VARIANTS)}")
    return [
        variant for name, variant in VARIANTS.items() if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    ]


def numbers(text: str) -> tuple[int, ...]:
    """The values of an option with commas."""
    return tuple(int(word) for word in text.split(",") if word)


def session_options(description: str | None, limit: float) -> argparse.ArgumentParser:
    """The options that say where things are, and how long a session may take; `limit`: seconds for one engine."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="what models.py made")
    parser.add_argument("--programs", type=Path, required=True, help="unpacked wheels, a folder each")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--budget", type=float, default=3600, help="seconds for everything")
    parser.add_argument("--limit", type=float, default=limit, help="seconds for one engine")
    parser.add_argument("--job", type=json.loads, default={}, metavar="JSON", help="replaces keys of every job")
    return parser


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = session_options(__doc__, limit=240)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=", ".join(VARIANTS))
    parser.add_argument("--jobs", type=int, default=1, help="variants at a time")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that the jobs share; 0 leaves them as they are")
    parser.add_argument("--apart", action="store_true", help="a server for each side")
    for name, default in vars(Points()).items():
        parser.add_argument(f"--{name}", type=numbers, default=default, metavar="N,...")
    options = parser.parse_args()
    try:
        options.variants = chosen(options.variants)
    except ValueError as error:
        parser.error(str(error))
    return options


def main() -> int:
    """Run what is missing, then report on all that was asked for."""
    options = arguments()
    (options.out / "runs").mkdir(parents=True, exist_ok=True)
    gpus: Queue[str] = Queue()
    for job in range(options.jobs):
        gpus.put(str(job % options.gpus) if options.gpus else "")
    deadline = time.monotonic() + options.budget
    folders = (path.resolve() for path in (options.models, options.programs, options.out))
    points = Points(options.contexts, options.batches, options.traced)
    session = Session(*folders, options.device, deadline, options.limit, options.job, gpus, points, options.apart)
    if any(variant.text for variant in options.variants):
        _ = session.prompts  # transformers is not imported by several threads at once
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda variant: run_variant(session, variant), options.variants))
    results = {variant.name: session.results(variant) for variant in options.variants}
    plain = {variant.plain: session.results(VARIANTS[variant.plain])["stock"] for variant in options.variants}
    comparison = report.report(options.variants, results, plain, session.models)
    (options.out / "comparison.json").write_text(json.dumps(comparison, indent=1))
    text = report.tables(comparison)
    (options.out / "comparison.md").write_text(text)
    say(text)
    return int(bool(comparison["failures"]))


if __name__ == "__main__":
    sys.exit(main())
