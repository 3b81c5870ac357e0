"""One engine in one configuration: one.py RESULT.json JOB.json

JOB has the keys of `Job`. RESULT is written anew after every part, so that what was measured survives what fails; its
"error" is the traceback of the failure.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
import traceback
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import steps

PROMPTS = (
    "def main():\n",
    "import os\nimport sys\n",
    "class Foo:\n    def __init__(self",
    "for i in range(10):\n",
    '"""A module that',
    "try:\n    import",
    "return self.",
    "if __name__ == ",
)
SHORT = 32
"""Tokens per request of the warm-up, and of the generation whose time is taken off."""
PROMPT_LENGTH = 48
TRACE_WAIT = 60
Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What is asked of an engine.

    Attributes:
        engine: arguments of sglang.Engine.
        text: whether prompts are text, else random token ids.
        batches: batch sizes to time and trace.
        tokens: tokens that each request generates when it is timed.
        compared: tokens per prompt whose ids are kept.
        repeats: timed generations.
        traced: tokens per request under the profiler; 0 traces nothing.
        plan: plan.json of the program that must run, if one does.
        traces: where traces go.

    """

    engine: dict[str, Any]
    text: bool
    batches: list[int]
    tokens: int = 512
    compared: int = 64
    repeats: int = 5
    traced: int = 128
    plan: str | None = None
    traces: str = "/tmp"
    environment: dict[str, str] = field(default_factory=dict)


class Server:
    """An engine, and the prompts that it is asked."""

    def __init__(self, job: Job) -> None:
        import sglang

        self.engine = sglang.Engine(**job.engine)
        self._text = job.text
        draw = random.Random(0)
        self._ids = [[draw.randrange(5, 2000) for _ in range(PROMPT_LENGTH)] for _ in PROMPTS]

    def generate(self, batch: int, tokens: int) -> tuple[list[Any], float]:
        """The answers to `batch` prompts, `tokens` each, and the seconds."""
        prompts = {"prompt": list(PROMPTS[:batch])} if self._text else {"input_ids": self._ids[:batch]}
        begin = time.perf_counter()
        answers = self.engine.generate(
            **prompts, sampling_params={"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        )
        return answers, time.perf_counter() - begin


def decode_steps(answers: list[Any]) -> int:
    """Steps of the request that took the most: verifications, or tokens after the prefill's without speculation."""
    metas = [answer["meta_info"] for answer in answers]
    return max(meta.get("spec_verify_ct") or meta["completion_tokens"] - 1 for meta in metas)


def rate(server: Server, batch: int, job: Job) -> Result:
    """Tokens per second, prefill included; and the time of a decode step, from a long and a short generation."""
    server.generate(batch, SHORT)
    samples: list[tuple[float, float, float]] = []
    for _ in range(job.repeats):
        few, short = server.generate(batch, SHORT)
        many, long = server.generate(batch, job.tokens)
        step = 1e3 * (long - short) / max(1, decode_steps(many) - decode_steps(few))
        samples.append((batch * job.tokens / long, step, decode_steps(many)))
    speeds, times, counts = zip(*samples, strict=True)
    return {
        "tokens_per_s": statistics.median(speeds),
        "tokens_per_s_range": [min(speeds), max(speeds)],
        "ms_per_step": statistics.median(times),
        "ms_per_step_range": [min(times), max(times)],
        "steps": statistics.median(counts),
        "tokens_per_step": batch * job.tokens / statistics.median(counts),
    }


def trace(server: Server, batch: int, job: Job, label: str) -> Result:
    """What a step launches, from a trace of one generation."""
    folder = Path(job.traces, f"{label}_bs{batch}_{time.time_ns()}")
    folder.mkdir(parents=True)
    program = steps.read_program(Path(job.plan)) if job.plan else set()
    server.engine.start_profile(
        output_dir=str(folder), activities=["CPU", "GPU"], with_stack=False, record_shapes=False
    )
    try:
        answers, _ = server.generate(batch, job.traced)
    finally:
        server.engine.stop_profile()
    found = steps.summarise(wait_for_trace(folder), decode_steps(answers), program)
    if program and not found["program_kernels"]:
        found["error"] = "no kernel of the program ran"
    return found


def wait_for_trace(folder: Path) -> list[steps.Event]:
    """The events of the trace that the scheduler's process writes."""
    deadline = time.monotonic() + TRACE_WAIT
    while True:
        found = sorted(folder.rglob("*.json.gz"))
        try:
            return steps.read_events(found[0])
        except (IndexError, EOFError, OSError, ValueError, zlib.error):  # none yet, or half of one
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def run(job: Job, label: str, result: Result, save: Any) -> None:
    """Everything that the job asks for."""
    begin = time.perf_counter()
    server = Server(job)
    result["up_s"] = round(time.perf_counter() - begin, 1)
    answers, _ = server.generate(len(PROMPTS), job.compared)
    result["output_ids"] = [answer["output_ids"] for answer in answers]
    result["accept_lengths"] = [answer["meta_info"].get("spec_accept_length") for answer in answers]
    save()
    for batch in job.batches:
        result[f"bs{batch}"] = rate(server, batch, job)
        save()
    for batch in job.batches if job.traced else ():
        try:
            result[f"trace_bs{batch}"] = trace(server, batch, job, label)
        except Exception:
            result[f"trace_bs{batch}"] = {"error": traceback.format_exc()[-2000:]}
        save()
    server.engine.shutdown()


def main(path: Path, job: Job) -> int:
    """0 when nothing failed."""
    result: Result = {"engine": job.engine, "environment": job.environment}
    os.environ.update(job.environment)

    def save() -> None:
        path.write_text(json.dumps(result))

    try:
        run(job, path.stem, result, save)
    except BaseException:
        result["error"] = traceback.format_exc()[-4000:]
        print(result["error"], flush=True)
    save()
    return int("error" in result)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Job(**json.loads(Path(sys.argv[2]).read_text()))))
