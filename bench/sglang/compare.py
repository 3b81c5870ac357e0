"""Stock SGLang against SGLang with specc's programs, in turn, each engine in a process of its own.

    compare.py --models DIR --programs DIR --out DIR [--budget SECONDS] [--limit SECONDS] [--jobs N] [VARIANT ...]

DIR of --programs has a folder per program, in which its wheel is unpacked. For every variant (all of variants.py by
default) stock SGLang runs, then SGLang with the program. Results that are in --out already are kept, so that a call
that ran out of time can be repeated. With --jobs N, N variants run at a time, on the GPUs that --gpus counts.
Results: OUT/comparison.json, OUT/comparison.md, OUT/runs. Ends with 1 when an engine failed, or was not started for
want of time, or when texts differ that must not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from variants import VARIANTS, Variant

HERE = Path(__file__).resolve().parent
if (HERE.parent / "texts.py").exists():
    sys.path.insert(0, str(HERE.parent))

from texts import compare_texts, last_line, number, share

SIDES = ("stock", "specc")
BATCHES = (1, 8)
LEAST = 25
"""Seconds below which no engine is started."""
Result = dict[str, Any]


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

    def path(self, variant: Variant, side: str, suffix: str) -> Path:
        """A file of one run."""
        return self.out / "runs" / f"{variant.name}.{side}.{suffix}"

    def result(self, variant: Variant, side: str) -> Result:
        """What a run left; "error" where there is none."""
        try:
            return json.loads(self.path(variant, side, "json").read_text())
        except (OSError, ValueError):
            return {"error": "not run"}


def sides(variant: Variant) -> tuple[str, ...]:
    """Both where there is a program."""
    return SIDES if variant.program else SIDES[:1]


def run_variant(session: Session, variant: Variant) -> None:
    """Both sides, one after the other."""
    gpu = session.gpus.get()
    try:
        for side in sides(variant):
            if "error" in session.result(variant, side):
                run_side(session, variant, side, gpu)
    finally:
        session.gpus.put(gpu)


def run_side(session: Session, variant: Variant, side: str, gpu: str) -> None:
    """One engine."""
    left = session.deadline - time.monotonic()
    result, job, log = (session.path(variant, side, suffix) for suffix in ("json", "job", "log"))
    result.unlink(missing_ok=True)
    if left < LEAST:
        say(f"{variant.name} {side}: not started, out of time")
        return
    program = session.programs / variant.program if side == "specc" and variant.program else None
    if program and not program.is_dir():
        result.write_text(json.dumps({"error": f"there is no program {program}"}))
        say(f"{variant.name} {side}: there is no program {program}")
        return
    job.write_text(json.dumps(make_job(session, variant, program)))
    begin = time.monotonic()
    code = run_process(
        [sys.executable, str(HERE / "one.py"), str(result), str(job)],
        environment(session, variant, program, gpu),
        log,
        min(left, session.limit),
    )
    say(f"{variant.name} {side}: exit status {code} after {time.monotonic() - begin:.0f} s")
    if code:
        found = session.result(variant, side)
        reason = "ran past its limit" if code == -9 else f"exit status {code}"
        result.write_text(json.dumps(found | {"error": found.get("error", "").replace("not run", "") or reason}))
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


def make_job(session: Session, variant: Variant, program: Path | None) -> Result:
    """What one.py is asked."""
    traced = {"cpu": 0, "cuda": 128 if variant.algorithm else 48}[session.device]
    return {
        "engine": variant.engine(session.models, session.device),
        "text": variant.text,
        "batches": list(BATCHES),
        "traced": traced,
        "plan": str(program / program.name / "plan.json") if program else None,
        "traces": str(session.out / "traces"),
        "environment": variant.environment(),
    } | session.overrides


def environment(session: Session, variant: Variant, program: Path | None, gpu: str) -> dict[str, str]:
    """Of the process: a program is found by its metadata on the path, and named so that nothing else can run."""
    path = [os.environ.get("PYTHONPATH", ""), str(program or "")]
    settings = os.environ | {"PYTHONPATH": ":".join(filter(None, path))} | variant.environment()
    settings |= {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}
    settings |= {"SGLANG_USE_CPU_ENGINE": "1"} if session.device == "cpu" else {}
    return settings | ({"SPECC_PROGRAM": program.name} if program else {})


def say(line: str) -> None:
    """At once, whoever reads."""
    print(line, flush=True)


COLUMNS = {
    "tokens/s": lambda run, batch: run[f"bs{batch}"]["tokens_per_s"],
    "ms per step": lambda run, batch: run[f"bs{batch}"]["ms_per_step"],
    "tokens per step": lambda run, batch: run[f"bs{batch}"]["tokens_per_step"],
    "launches": lambda run, batch: run[f"trace_bs{batch}"]["launches_per_step"],
    "graphs": lambda run, batch: run[f"trace_bs{batch}"]["graphs_per_step"],
    "between": lambda run, batch: run[f"trace_bs{batch}"]["between_per_step"],
    "glue us": lambda run, batch: run[f"trace_bs{batch}"]["glue_us"],
    "program us": lambda run, batch: run[f"trace_bs{batch}"]["us_by_kind"]["program"],
    "metadata us": lambda run, batch: run[f"trace_bs{batch}"]["us_by_kind"]["metadata"],
    "torch us": lambda run, batch: run[f"trace_bs{batch}"]["us_by_kind"]["torch"],
    "GPU us": lambda run, batch: run[f"trace_bs{batch}"]["gpu_busy_us"],
}
RATIOS = ("tokens/s", "ms per step", "launches", "glue us", "GPU us")


def figures(run: Result, batch: int) -> dict[str, float | None]:
    """The columns of one run; None where it was not measured."""
    found: dict[str, float | None] = {}
    for name, read in COLUMNS.items():
        try:
            found[name] = float(read(run, batch))
        except (KeyError, TypeError):
            found[name] = None
    return found


def compare(session: Session, chosen: list[Variant]) -> list[Result]:
    """A record per variant: texts, and by batch the figures of both sides and specc's over stock's."""
    records: list[Result] = []
    for variant in chosen:
        runs = {side: session.result(variant, side) for side in sides(variant)}
        record: Result = {"variant": variant.name, "errors": {}}
        for side, run in runs.items():
            parts = {side: run} | {f"{side} {key}": value for key, value in run.items() if key.startswith("trace_")}
            record["errors"] |= {part: found["error"] for part, found in parts.items() if "error" in found}
        record["up_s"] = {side: run.get("up_s") for side, run in runs.items()}
        record["accept_lengths"] = {side: run.get("accept_lengths") for side, run in runs.items()}
        if variant.text and variant.program:
            plain = session.result(VARIANTS[f"{variant.kind}_nospec"], "stock")
            record["texts"] = compare_texts(runs["specc"], runs["stock"])
            record["texts_of_no_speculation"] = {side: compare_texts(run, plain) for side, run in runs.items()}
        for batch in BATCHES:
            sets = {side: figures(run, batch) for side, run in runs.items()}
            record[f"bs{batch}"] = sets | {"ratio": ratios(sets)} if variant.program else sets
        for side, run in runs.items():
            traces = {key: value for key, value in run.items() if key.startswith("trace_")}
            record.setdefault("traces", {})[side] = traces
        records.append(record)
    return records


def ratios(sets: dict[str, dict[str, float | None]]) -> dict[str, float | None]:
    """specc's figures over stock's."""
    pairs = {name: (sets["specc"][name], sets["stock"][name]) for name in RATIOS}
    return {name: mine / other if mine is not None and other else None for name, (mine, other) in pairs.items()}


def table(records: list[Result]) -> str:
    """Markdown: texts, then two lines of figures and one of ratios per variant and batch."""
    lines = ["| variant | texts as stock | stock as no speculation | failed |", "|---|---|---|---|"]
    for record in records:
        plain = record.get("texts_of_no_speculation", {}).get("stock")
        failed = "; ".join(f"{side}: {last_line(error)}" for side, error in record["errors"].items())
        lines.append(f"| {record['variant']} | {share(record.get('texts'))} | {share(plain)} | {failed or '-'} |")
    lines += ["", f"| variant | batch | | {' | '.join(COLUMNS)} |", "|---" * (3 + len(COLUMNS)) + "|"]
    for record in records:
        for batch in BATCHES:
            for side, found in record[f"bs{batch}"].items():
                cells = " | ".join(number(found.get(name)) for name in COLUMNS)
                label = "**specc / stock**" if side == "ratio" else side
                lines.append(f"| {record['variant']} | {batch} | {label} | {cells} |")
    return "\n".join(lines) + "\n"


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=", ".join(VARIANTS))
    parser.add_argument("--models", type=Path, required=True, help="what models.py made")
    parser.add_argument("--programs", type=Path, required=True, help="unpacked wheels, a folder each")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--budget", type=float, default=3600, help="seconds for everything")
    parser.add_argument("--limit", type=float, default=180, help="seconds for one engine")
    parser.add_argument("--jobs", type=int, default=1, help="variants at a time")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that the jobs share; 0 leaves them as they are")
    parser.add_argument(
        "--job", type=json.loads, default={}, metavar="JSON", help="replaces keys of every job of one.py"
    )
    options = parser.parse_args()
    if unknown := [name for name in options.variants if name not in VARIANTS]:
        parser.error(f"no variant {', '.join(unknown)}; there are {', '.join(VARIANTS)}")
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
    session = Session(*folders, options.device, deadline, options.limit, options.job, gpus)
    chosen = [VARIANTS[name] for name in options.variants or VARIANTS]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda variant: run_variant(session, variant), chosen))
    records = compare(session, chosen)
    (options.out / "comparison.json").write_text(json.dumps(records, indent=1))
    text = table(records)
    (options.out / "comparison.md").write_text(text)
    say(text)
    texts = [record["texts"] for record in records if record.get("texts")]
    return int(any(record["errors"] for record in records) or any(found["same"] < found["of"] for found in texts))


if __name__ == "__main__":
    sys.exit(main())
