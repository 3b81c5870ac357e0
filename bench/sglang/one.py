"""One engine in one configuration: one.py RESULT.json JOB.json

JOB has the keys of `Job`. RESULT has what each of its sides gave, by side, and beside them what they have in common. It
is written anew after every part, so that what was measured survives what fails; its "error" is the traceback of the
failure.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import steps

SHORT = 32
"""Tokens per request of the generation whose time is taken off."""
TRACE_WAIT = 60
SERVER = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "speculative_draft_attention_backend",
    "sampling_backend",
    "page_size",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "max_running_requests",
    "disable_overlap_schedule",
    "version",
)
"""What is kept of a server's own words about itself, defaults resolved."""
Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What is asked of an engine.

    Attributes:
        engine: arguments of sglang.Engine.
        environment: variables that SGLang reads beside them.
        sampling: parameters of all requests.
        prompts: token ids of prompts whose answers are kept, all at a time.
        compared: tokens of each answer.
        points: [tokens of a prompt, batch size] that are timed.
        traced: those that are traced, too.
        tokens: tokens that each request generates when it is timed.
        repeats: timed generations.
        profiled: tokens of each request under the profiler.
        sides: who runs the decode steps, in turn: "specc" the program, "stock" SGLang's own; the program also by "auto"
            or the name of a shape, with that.
        plan: plan.json of the program that is installed, if one is.
        traces: where traces go.

    """

    engine: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    sampling: dict[str, float] = field(default_factory=dict)
    prompts: list[list[int]] = field(default_factory=list)
    compared: int = 40
    points: list[list[int]] = field(default_factory=list)
    traced: list[list[int]] = field(default_factory=list)
    tokens: int = 256
    repeats: int = 3
    profiled: int = 96
    sides: list[str] = field(default_factory=lambda: ["stock"])
    plan: str | None = None
    traces: str = "/tmp"


class Server:
    """An engine, and what it is asked."""

    def __init__(self, job: Job) -> None:
        import sglang

        self.engine = sglang.Engine(**job.engine)
        self._sampling = {"ignore_eos": True} | job.sampling

    def generate(self, prompts: list[list[int]], tokens: int) -> tuple[list[Any], float]:
        """The answers to some prompts at once, `tokens` each, and the seconds."""
        begin = time.perf_counter()
        answers = self.engine.generate(input_ids=prompts, sampling_params=self._sampling | {"max_new_tokens": tokens})
        return answers, time.perf_counter() - begin

    def switch(self, side: str) -> None:
        """Have a side run the steps from now on. RuntimeError where that is refused."""
        from sglang.srt.managers.io_struct import SetInternalStateReq

        word = {"stock": "off", "specc": "on"}.get(side, side)
        asked = SetInternalStateReq(server_args={f"specc:{word}": 1})
        if not all(self.engine.loop.run_until_complete(self.engine.tokenizer_manager.set_internal_state(asked))):
            raise RuntimeError(f"the server does not switch to {side}")

    def about(self) -> Result:
        """What server this is, and what the program has done."""
        info = self.engine.get_server_info()
        internal = (info.get("internal_states") or [{}])[0]
        return {"server": {name: info.get(name) for name in SERVER}, "program": internal.get("specc")}


def random_prompts(context: int, batch: int) -> list[list[int]]:
    """A prompt of a length, the same in every engine."""
    draw = random.Random(context)
    return [[draw.randrange(5, 2000) for _ in range(context)] for _ in range(batch)]


def decode_steps(answers: list[Any]) -> int:
    """Steps of the request that took the most: verifications, or tokens after the prefill's without speculation."""
    metas = [answer["meta_info"] for answer in answers]
    return max(meta.get("spec_verify_ct") or meta["completion_tokens"] - 1 for meta in metas)


def rates(server: Server, prompts: list[list[int]], job: Job, turn: Callable[[str], None]) -> dict[str, Result]:
    """By side the time of a decode step, and tokens per second, from a long and a short generation each.

    So neither has the prefill, whose prompts are cached by generations that are not timed. Sides take turns,
    forwards and backwards.
    """
    taken: dict[str, list[tuple[float, float, float]]] = {side: [] for side in job.sides}
    for side in job.sides:
        turn(side)
        server.generate(prompts, SHORT)
        server.generate(prompts, SHORT)  # with all prompts cached: what such a batch compiles is there, too
    for number in range(job.repeats):
        for side in job.sides[:: -1 if number % 2 else 1]:
            turn(side)
            few, short = server.generate(prompts, SHORT)
            many, long = server.generate(prompts, job.tokens)
            count, tokens = max(1, decode_steps(many) - decode_steps(few)), job.tokens - SHORT
            taken[side].append((1e3 * (long - short) / count, len(prompts) * tokens / (long - short), tokens / count))
    return {side: summary(samples) for side, samples in taken.items()}


def summary(taken: list[tuple[float, float, float]]) -> Result:
    """Medians of milliseconds a step, tokens per second and tokens a step."""
    times, speeds, accepted = zip(*taken, strict=True)
    return {
        "ms_per_step": statistics.median(times),
        "ms_per_step_range": [min(times), max(times)],
        "ms_per_step_each": times,
        "tokens_per_s": statistics.median(speeds),
        "tokens_per_step": statistics.median(accepted),
    }


def trace(server: Server, prompts: list[list[int]], job: Job, label: str, program: set[str]) -> Result:
    """What a step launches, from a trace of one generation."""
    folder = Path(job.traces, f"{label}_{time.time_ns()}")
    folder.mkdir(parents=True)
    server.engine.start_profile(
        output_dir=str(folder), activities=["CPU", "GPU"], with_stack=False, record_shapes=False
    )
    try:
        answers, _ = server.generate(prompts, job.profiled)
    finally:
        server.engine.stop_profile()
    profile = steps.summarise(wait_for_trace(folder), decode_steps(answers), program)
    if program and not profile["program_kernels"]:
        profile["error"] = "no kernel of the program ran"
    return profile


def wait_for_trace(folder: Path) -> list[steps.Event]:
    """The events of the trace that the scheduler's process writes."""
    deadline = time.monotonic() + TRACE_WAIT
    while True:
        paths = sorted(folder.rglob("*.json.gz"))
        try:
            return steps.read_events(paths[0])
        except (IndexError, EOFError, OSError, ValueError, zlib.error):  # none yet, or half of one
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def run(job: Job, label: str, result: Result, save: Callable[[], None]) -> None:
    """Everything that the job asks for."""
    begin = time.perf_counter()
    server = Server(job)
    result["up_s"] = round(time.perf_counter() - begin, 1)
    result |= server.about()
    both = len(job.sides) > 1
    turn = server.switch if both else lambda side: None
    for side in job.sides:
        result[side] = {}
        if job.prompts:
            turn(side)
            server.engine.flush_cache()
            answers, _ = server.generate(job.prompts, job.compared)
            result[side]["output_ids"] = [answer["output_ids"] for answer in answers]
            result[side]["accept_lengths"] = [answer["meta_info"].get("spec_accept_length") for answer in answers]
            save()
    for context, batch in job.points:
        point, prompts = f"{context}x{batch}", random_prompts(context, batch)
        for side, measured in rates(server, prompts, job, turn).items():
            result[side][point] = measured
        save()
        for side in job.sides if [context, batch] in job.traced else ():
            turn(side)
            result[side][f"trace {point}"] = traced(server, prompts, job, f"{label}_{side}_{point}", side)
            save()
    result |= server.about()
    server.engine.shutdown()


def traced(server: Server, prompts: list[list[int]], job: Job, label: str, side: str) -> Result:
    """As `trace`; "error" where that fails, and everything else goes on."""
    program = steps.read_program(Path(job.plan)) if job.plan and side == "specc" else set[str]()
    try:
        return trace(server, prompts, job, label, program)
    except Exception:
        return {"error": traceback.format_exc()[-2000:]}


def main(path: Path, job: Any, run: Callable[[Any, str, Result, Callable[[], None]], None] = run) -> int:
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
