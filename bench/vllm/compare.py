"""vLLM 0.33.0 with its own speculation against vLLM with specc's programs, each engine in a process of its own.

    compare.py --models DIR --programs DIR --out DIR [--size SIZE] [--quick] [--together] [--budget SECONDS] [RUN ...]

Runs are none, and draft, eagle, eagle3 and ngram, of each .vllm and .specc; head.specc is a program for the EAGLE head
that computes the draft's head itself. Usual are none, draft and eagle. DIR of --programs has a folder per program, in
which its wheel is unpacked. Engines are as servers start: FLASH_ATTN and torch.compile. With --size 8b the models have
the sizes of Llama-3.1-8B. With --together all engines start beside each other, and are measured in turns, so that what
else the machine does meets all of them: x is the median, and the range, of tokens/s over vLLM's own in every turn. With
--size tiny they run on a CPU, for which Triton needs a backend `cpu` on the path (tests/vllm/stand_ins).
Results: OUT/comparison.json, OUT/comparison.md, OUT/runs. Ends with 1 when an engine failed, or when token ids or
accepted lengths differ.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from host import table
from models import COMMON, SIZES

HERE = Path(__file__).resolve().parent
if (HERE.parent / "texts.py").exists():
    sys.path.insert(0, str(HERE.parent))

from texts import compare_texts, last_line, number, share

STEPS = 3
KINDS: dict[str, dict[str, Any]] = {
    "draft": {"method": "draft_model", "model": "draft"},
    "eagle": {"method": "eagle", "model": "eagle"},
    "eagle3": {"method": "eagle3", "model": "eagle3"},
    "head": {"method": "eagle", "model": "eagle"},
    "ngram": {"method": "ngram_gpu", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
}
"""vLLM's words for each kind of draft; `model` is its folder."""
USUAL = ("draft.vllm", "draft.specc", "none", "eagle.vllm", "eagle.specc")
RUNS = ("none", *(f"{kind}.{side}" for kind in KINDS for side in ("vllm", "specc") if (kind, side) != ("head", "vllm")))
CUDA: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": 1024,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "block_size": 16,
    "attention_backend": "FLASH_ATTN",
    "async_scheduling": True,
    "gpu_memory_utilization": 0.1,
    "kv_cache_memory_bytes": 3 << 30,
    "compilation_config": {},
}
CPU: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "enforce_eager": True,
    "block_size": 32,
}
SHARED: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "enable_prefix_caching": False,
    "disable_log_stats": True,
    "seed": 1,
}
BATCHES = [1, 8, 32, 64]
ENGINES = {"tiny": (CPU, [1, 2]), "small": (CUDA, BATCHES), "8b": (CUDA, BATCHES)}
"""Arguments of vLLM and batches by size of the models."""
QUICK = {"tokens": 128, "compared": 96, "repeats": 9}
TINY = {"tokens": 32, "compared": 24, "repeats": 1, "profiled": 4, "clocked": 8, "device": "cpu"}
Result = dict[str, Any]


class Engine:
    """One run: its files, its process, and what it left."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        self.name, self._given = name, given
        kind, _, side = name.partition(".")
        self.kind = kind
        words = (given.size, *["drawn"] * bool(given.sampling), kind)
        self.program = f"specc_program_bench_vllm_{'_'.join(words)}" if side == "specc" else None
        self.path: Path = given.out / "runs" / f"{name}.json"
        self.log = self.path.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin to bring it up."""
        for suffix in (".json", ".ready", ".turn", ".done"):
            self.path.with_suffix(suffix).unlink(missing_ok=True)
        job = self.path.with_suffix(".job")
        job.write_text(json.dumps(self.job()))
        settings = dict(os.environ)
        if self.program:
            settings["PYTHONPATH"] = f"{settings.get('PYTHONPATH', '')}:{self._given.programs / self.program}"
            settings["SPECC_PROGRAM"] = self.program
            settings["SPECC_TOKEN_MAP"] = str(self._given.models / "common.json")
        with self.log.open("w") as file:
            command = [sys.executable, str(HERE / "engine.py"), str(self.path), str(job)]
            self._process = subprocess.Popen(command, env=settings, stdout=file, stderr=file, start_new_session=True)

    def job(self) -> Result:
        """What engine.py is asked."""
        size, models = self._given.size, self._given.models
        arguments, batches = ENGINES[size]
        engine, nodes = SHARED | arguments | {"model": str(models / "target")}, 1
        if self.kind != "none":
            speculation = KINDS[self.kind] | {"num_speculative_tokens": STEPS}
            if "model" in speculation:
                speculation["model"] = str(models / speculation["model"])
            engine["speculative_config"], nodes = speculation, STEPS + 1
        if "compilation_config" in engine:
            captured = [2**power for power in range((nodes * max(batches)).bit_length())]
            engine["compilation_config"] = engine["compilation_config"] | {"cudagraph_capture_sizes": captured}
        job: Result = {"engine": engine | self._given.engine, "batches": batches, "program": self.program is not None}
        job |= {"vocab": COMMON[size], "traces": str(self._given.out / "traces")}
        job |= {"sampling": self._given.sampling} if self._given.sampling else {}
        return job | (QUICK if self._given.quick else {}) | (TINY if size == "tiny" else {}) | self._given.job

    def wait(self, deadline: float, reached: Callable[[], bool]) -> bool:
        """Until it ends, or has reached something: whether it has not failed. Killed at the deadline."""
        assert self._process is not None
        while self._process.poll() is None:
            if reached():
                return True
            if time.monotonic() > deadline:
                self.stop()
                result = self.result()
                error = result["error"] if "not run" not in result.get("error", "not run") else "ran past its limit"
                self.path.write_text(json.dumps(result | {"error": error}))
                return False
            time.sleep(0.01)
        return self._process.returncode == 0

    def is_up(self) -> bool:
        """Whether it can measure."""
        return self.path.with_suffix(".ready").exists()

    def measure(self, turn: int, deadline: float) -> bool:
        """Let it measure the next part; whether it has not failed."""
        done = self.path.with_suffix(".done")
        self.path.with_suffix(".turn").write_text(str(turn))
        return self.wait(deadline, lambda: done.exists() and done.read_text() == str(turn))

    @property
    def ended(self) -> bool:
        """Whether it has measured everything."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End it with all that it started."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()

    def result(self) -> Result:
        """What it left; "error" where there is nothing, or it ended before its time."""
        try:
            left = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {"error": "not run"}
        code = self._process.poll() if self._process is not None else None
        return {"error": f"exit status {code}"} | left if code else left


def serve(engines: list[Engine], given: argparse.Namespace) -> None:
    """Run all engines."""
    begin = time.monotonic()
    last = begin + given.budget
    groups = [engines] if given.together else [[engine] for engine in engines]
    try:
        for group in groups:
            for engine in group:
                engine.start()
            up = min(last, time.monotonic() + given.start)
            ready = [engine for engine in group if tell(engine, engine.wait(up, engine.is_up), "up", begin)]
            take_turns(ready, min(last, time.monotonic() + given.limit * len(ready)), begin)
    finally:
        for engine in engines:
            engine.stop()


def take_turns(engines: list[Engine], deadline: float, begin: float) -> None:
    """Let engines measure part by part, each of them in every turn, forwards and backwards."""
    turn = 0
    while engines:
        turn += 1
        for engine in engines[:: 1 if turn % 2 else -1]:
            good = engine.measure(turn, deadline)
            if engine.ended:
                tell(engine, good, "measured", begin)
        engines = [engine for engine in engines if not engine.ended]


def tell(engine: Engine, good: bool, what: str, begin: float) -> bool:
    """Say how far an engine came, and the end of its log if it failed."""
    print(f"{time.monotonic() - begin:6.1f} s  {engine.name}: {what if good else 'FAILED'}", flush=True)
    if not good:
        lines = engine.log.read_text(errors="replace").splitlines()
        print("\n".join(line[:300] for line in lines[-30:]), last_line(engine.result().get("error", "")), flush=True)
    return good


def report(engines: list[Engine]) -> tuple[Result, str, bool]:
    """All results without token ids, a table of them, and whether all is as it must be."""
    runs = {engine.name: engine.result() for engine in engines}
    heads = ["run", "B", "ids as none", "ids as vLLM", "accepted", "timed", "tokens/s", "ms/step", "launches", "graphs"]
    lines = [f"| {' | '.join([*heads, 'GPU us', 'x'])} |", "|---" * (len(heads) + 2) + "|"]
    good = not any("error" in run for run in runs.values())
    for name, run in runs.items():
        own_run = runs.get(name.replace("head", "eagle").replace("specc", "vllm"), {})
        for key in [key for key in run if key.startswith("b") and key[1:].isdigit()]:
            cells, same = row(run, own_run, runs.get("none", {}), key)
            good = good and same
            lines.append(f"| {name} | {key[1:]} | {' | '.join(cells)} |")
    for name, run in runs.items():
        failed = f" FAILED: {last_line(run['error'])}" if "error" in run else ""
        stated = {key: run.get(key) for key in ("up_s", "speculator", "async_scheduling", "cudagraph_mode", "counted")}
        lines += ["", f"{name}: {json.dumps(stated)}" + failed]
    return runs, "\n".join([*lines, *table(runs)]) + "\n", good


def row(run: Result, own_run: Result, plain: Result, key: str) -> tuple[list[str], bool]:
    """The cells of one batch size, and whether ids and accepted length are those that they must be."""
    measured, traced = run[key], run.get(f"profile_{key}", {})
    ids_of_run = {"output_ids": measured["output_ids"]}
    own_measured = own_run.get(key, {})
    texts = [compare_texts(ids_of_run, reference.get(key, {})) for reference in (plain, own_run)]
    graphs = sum(count for name, count in traced.get("calls_per_step", {}).items() if "GraphLaunch" in name)
    ratios = [
        rate / stock
        for rate, stock in zip(measured["tokens_per_s"], own_measured.get("tokens_per_s", []), strict=False)
    ]
    spread = f" ({number(min(ratios))} to {number(max(ratios))})" if ratios else ""
    cells = [share(text) for text in texts] + [
        number(value)
        for value in (
            measured["accept_length"],
            *(median(measured[name]) for name in ("timed_accept_length", "tokens_per_s", "ms_per_step")),
            traced.get("launches_per_step"),
            graphs if traced else None,
            traced.get("gpu_us_per_step"),
        )
    ]
    cells.append(number(median(ratios)) + spread)
    same = all(text is None or text["same"] == text["of"] for text in texts)
    return cells, same and own_measured.get("accept_length", measured["accept_length"]) == measured["accept_length"]


def median(samples: list[Any]) -> float | None:
    """None of nothing."""
    known = [sample for sample in samples if sample is not None]
    return statistics.median(known) if known else None


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--models", type=Path, required=True, help="what models.py made")
    parser.add_argument("--programs", type=Path, required=True, help="unpacked wheels, a folder each")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="small", help="of the models; tiny ones run on a CPU")
    parser.add_argument("--quick", action="store_true", help="fewer tokens")
    parser.add_argument("--together", action="store_true", help="start all engines beside each other")
    parser.add_argument("--budget", type=float, default=3600, help="seconds for everything")
    parser.add_argument("--start", type=float, default=300, help="seconds for an engine to come up")
    parser.add_argument("--limit", type=float, default=300, help="seconds to measure one engine, its share of turns")
    parser.add_argument(
        "--sampling", type=json.loads, default={}, metavar="JSON",
        help="how requests that are timed are sampled, arguments of vllm.SamplingParams, by programs of "
        "programs.py --drawn; texts that are compared are greedy",
    )  # fmt: skip
    parser.add_argument(
        "--engine", type=json.loads, default={}, metavar="JSON", help="more arguments of vllm.EngineArgs"
    )
    parser.add_argument("--job", type=json.loads, default={}, metavar="JSON", help="replaces keys of every job")
    given = parser.parse_args()
    if unknown := [name for name in given.runs if name not in RUNS]:
        parser.error(f"no run {', '.join(unknown)}; there are {', '.join(RUNS)}")
    for name in ("models", "programs", "out"):
        setattr(given, name, getattr(given, name).resolve())
    return given


def main() -> int:
    """Run, compare, report."""
    given = arguments()
    for folder in ("runs", "traces"):
        (given.out / folder).mkdir(parents=True, exist_ok=True)
    engines = [Engine(name, given) for name in given.runs or USUAL]
    serve(engines, given)
    runs, text, good = report(engines)
    (given.out / "comparison.json").write_text(json.dumps(runs))
    (given.out / "comparison.md").write_text(text)
    print(text, flush=True)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
