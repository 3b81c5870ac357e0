"""One engine of vLLM in one configuration: engine.py RESULT.json JOB.json

JOB has the keys of `Job`. Everything happens in this process. RESULT is written anew after every part, so that what was
measured survives what fails; its "error" is the traceback of the failure. When the engine is up, RESULT.ready is made.
After each part the number of parts is in RESULT.done, and the next one begins when RESULT.turn is larger: engines take
turns, so that each is timed beside all others, however busy the machine is by then.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from host import Clock, by_part, idle

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TRITON_INTERPRET": "1",
    "OMP_NUM_THREADS": "1",
}
PROMPT = 32
SETTLE = 8
"""Steps before the profiler looks: prefills are over then."""
LAUNCHES = ("LaunchKernel", "GraphLaunch", "Memcpy", "Memset")
Result = dict[str, Any]
GREEDY: dict[str, Any] = {"temperature": 0}


@dataclass(frozen=True)
class Job:
    """What is asked of an engine.

    Attributes:
        engine: arguments of vllm.EngineArgs.
        batches: batch sizes.
        vocab: V.
        device: "cuda" or "cpu".
        tokens: tokens that each request generates when it is timed.
        compared: tokens per request whose ids are kept.
        repeats: timed generations, of a batch size.
        profiled: decode steps under the profiler; 0 profiles nothing.
        clocked: decode steps in which the parts of the engine's thread are timed; 0 times none.
        program: whether a program must have run steps.
        traces: folder for a trace per batch; None keeps none.
        sampling: of requests that are timed, arguments of vllm.SamplingParams; those whose ids are kept are greedy.

    """

    engine: dict[str, Any]
    batches: list[int]
    vocab: int
    device: str = "cuda"
    tokens: int = 256
    compared: int = 128
    repeats: int = 9
    profiled: int = 20
    clocked: int = 100
    program: bool = False
    traces: str | None = None
    sampling: dict[str, Any] = field(default_factory=lambda: GREEDY)


class Server:
    """An engine, what it is asked, and how many tokens its verifications took."""

    def __init__(self, job: Job) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self.engine = LLMEngine.from_engine_args(EngineArgs(**job.engine))
        self.accepted: list[int] = []
        self.steps = 0
        self._requests = 0
        draw = random.Random(0)
        self._prompts = [[draw.randrange(5, job.vocab) for _ in range(PROMPT)] for _ in range(max(job.batches))]
        self.core = self.engine.engine_core.engine_core
        self.runner = self.core.model_executor.driver_worker.worker.model_runner
        self.scheduler = self.core.scheduler
        self._update, self.scheduler.update_from_output = self.scheduler.update_from_output, self._count

    def _count(self, step: Any, output: Any) -> Any:
        """Count a step, and the tokens of its verifications."""
        self.steps += bool(step.num_scheduled_tokens)
        for name in step.scheduled_spec_decode_tokens:
            self.accepted.append(len(output.sampled_token_ids[output.req_id_to_index[name]]))
        return self._update(step, output)

    def add(self, batch: int, tokens: int, sampling: dict[str, Any]) -> None:
        """Hand `batch` requests over, sampled by these arguments of vllm.SamplingParams."""
        from vllm import SamplingParams

        for prompt in self._prompts[:batch]:
            asked = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, **sampling)
            self.engine.add_request(f"{self._requests:06}", {"prompt_token_ids": prompt}, asked)
            self._requests += 1

    def drain(self) -> list[list[int]]:
        """Serve all requests to their ends: their token ids, in the order in which they came."""
        by_request: dict[str, list[int]] = {}
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                by_request[output.request_id] = list(output.outputs[0].token_ids)
        return [ids for _, ids in sorted(by_request.items())]

    def generate(self, batch: int, tokens: int, sampling: dict[str, Any]) -> tuple[list[list[int]], float, int]:
        """Token ids, seconds, and steps."""
        before, begin = self.steps, time.perf_counter()
        self.add(batch, tokens, sampling)
        ids = self.drain()
        return ids, time.perf_counter() - begin, self.steps - before


def compared(server: Server, batch: int, job: Job) -> Result:
    """Token ids and accepted length of one batch size, of greedy requests; then what is timed has run once."""
    server.generate(batch, job.tokens // 4, GREEDY)
    server.accepted.clear()
    ids, *_ = server.generate(batch, job.compared, GREEDY)
    result: Result = {"output_ids": ids, "accept_length": mean(server.accepted), "verified": len(server.accepted)}
    server.generate(batch, job.tokens // 4, job.sampling)
    return result | {"timed_accept_length": [], "tokens_per_s": [], "ms_per_step": []}


def timed(server: Server, batch: int, job: Job, result: Result) -> None:
    """Add a sample to each list: accepted length, tokens per second with the prefill, the time of a step."""
    server.accepted.clear()
    _, short, few = server.generate(batch, job.tokens // 4, job.sampling)
    _, long, many = server.generate(batch, job.tokens, job.sampling)
    result["timed_accept_length"].append(mean(server.accepted))
    result["tokens_per_s"].append(batch * job.tokens / long)
    result["ms_per_step"].append(1e3 * (long - short) / max(1, many - few))


def mean(numbers: list[int]) -> float | None:
    """None of nothing."""
    return sum(numbers) / len(numbers) if numbers else None


def profile(server: Server, batch: int, job: Job, label: str) -> Result:
    """Launches per decode step, by the host's calls and by the GPU's events."""
    import torch
    from torch.profiler import ProfilerActivity

    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (job.device == "cuda")
    begin_decoding(server, batch, job.profiled, job)
    before, begin = server.steps, time.perf_counter()
    with torch.profiler.profile(activities=kinds) as profiler:
        settled(server, job.profiled)
        if job.device == "cuda":
            torch.cuda.synchronize()
    wall, steps = time.perf_counter() - begin, server.steps - before
    running = len(server.scheduler.running)
    server.drain()
    if job.traces:
        profiler.export_chrome_trace(str(Path(job.traces, f"{label}_b{batch}.json.gz")))
    calls, gpu, ran = Counter[str](), Counter[str](), []
    spent: dict[str, float] = defaultdict(float)
    for event in profiler.events():
        if "CUDA" in str(event.device_type):
            gpu[event.name] += 1
            spent[event.name] += event.time_range.elapsed_us()
            ran.append((event.id, event.name, event.time_range.start, event.time_range.end))
        elif event.name.startswith("cu") and any(word in event.name for word in LAUNCHES):
            calls[event.name] += 1
    return {
        "steps": steps,
        "running": running,
        "wall_us": 1e6 * wall / steps,
        "launches_per_step": sum(calls.values()) / steps,
        "calls_per_step": {name: count / steps for name, count in calls.most_common()},
        "gpu_events_per_step": sum(gpu.values()) / steps,
        "gpu_us_per_step": sum(spent.values()) / steps,
        "most_time": [[name[:100], gpu[name] / steps, us / steps] for name, us in top(spent, 25)],
        "most_launched": [[name[:100], count / steps] for name, count in gpu.most_common(25)],
    } | idle(ran, steps)


def clocked(server: Server, batch: int, job: Job) -> Result:
    """What the engine's thread does in a decode step."""
    from vllm.v1.worker.gpu import async_utils

    begin_decoding(server, batch, job.clocked, job)
    places = {"engine": server.engine, "core": server.core, "runner": server.runner, "outputs": async_utils}
    before, begin, clock = server.steps, time.perf_counter(), Clock()
    with clock.over(places):
        settled(server, job.clocked)
    seconds, steps = time.perf_counter() - begin, server.steps - before
    server.drain()
    return by_part(clock.spent, seconds, steps)


def begin_decoding(server: Server, batch: int, steps: int, job: Job) -> None:
    """Hand requests over that decode for so many steps more, behind `SETTLE`."""
    before = server.steps
    server.add(batch, 4 * (SETTLE + steps + 4), job.sampling)
    while server.steps == before or not server.scheduler.running:
        server.engine.step()
    settled(server, SETTLE)


def settled(server: Server, steps: int) -> None:
    """Run at least so many steps."""
    last = server.steps + steps
    while server.steps < last:
        server.engine.step()


def top(spent: dict[str, float], count: int) -> list[tuple[str, float]]:
    """The most first."""
    return sorted(spent.items(), key=lambda pair: -pair[1])[:count]


def metrics() -> dict[str, float]:
    """specc's, by name and labels."""
    from prometheus_client import REGISTRY

    samples = (sample for family in REGISTRY.collect() for sample in family.samples)
    return {
        f"{sample.name} {json.dumps(sample.labels)}": sample.value
        for sample in samples
        if sample.name.startswith("specc:") and not sample.name.endswith("_created")
    }


def served(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What has been counted in between."""
    return {name: value - before.get(name, 0) for name, value in after.items() if "_total" in name}


def about() -> Result:
    """What runs."""
    import torch
    import triton
    import vllm

    return {"vllm": vllm.__version__, "torch": torch.__version__, "triton": triton.__version__}


def parts(server: Server, job: Job, result: Result, label: str) -> Iterator[None]:
    """Everything that the job asks for, a part at a time."""
    for batch in job.batches:
        entry = result[f"b{batch}"] = compared(server, batch, job)
        yield
        for _ in range(job.repeats):
            timed(server, batch, job, entry)
            yield
    for batch in job.batches if job.profiled else ():
        result[f"profile_b{batch}"] = profile(server, batch, job, label)
        yield
    for batch in job.batches if job.clocked else ():
        result[f"host_b{batch}"] = clocked(server, batch, job)
        yield


def wait_for(path: Path, turn: int) -> None:
    """Until RESULT.turn says so much."""
    while True:
        with contextlib.suppress(OSError, ValueError):  # not there yet, or not written to its end
            if int(path.with_suffix(".turn").read_text()) >= turn:
                return
        time.sleep(0.01)


def run(job: Job, path: Path, result: Result, save: Any) -> None:
    """Everything that the job asks for."""
    begin = time.perf_counter()
    result["versions"] = about()
    server = Server(job)
    result["up_s"] = round(time.perf_counter() - begin, 1)
    config = server.engine.vllm_config
    result["async_scheduling"] = bool(config.scheduler_config.async_scheduling)
    result["cudagraph_mode"] = str(config.compilation_config.cudagraph_mode)
    result["speculator"] = type(server.runner.speculator).__name__
    save()
    path.with_suffix(".ready").touch()
    counted = metrics()
    wait_for(path, 1)
    for turn, _ in enumerate(parts(server, job, result, path.stem), 1):
        result["counted"] = served(counted, metrics())
        save()
        path.with_suffix(".done").write_text(str(turn))
        wait_for(path, turn + 1)
    steps = sum(value for name, value in result["counted"].items() if '"by": "program"' in name)
    if bool(steps) != job.program:
        raise RuntimeError(f"the program ran {steps:.0f} steps; counted: {result['counted']}")


def main(path: Path, job: Job) -> int:
    """0 when nothing failed."""
    os.environ.update(ENVIRONMENT | (CPU if job.device == "cpu" else {}))
    result: Result = {"engine": job.engine}

    def save() -> None:
        path.write_text(json.dumps(result))

    try:
        run(job, path, result, save)
    except BaseException:
        result["error"] = traceback.format_exc()[-4000:]
        print(result["error"], flush=True)
    save()
    return int("error" in result)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), Job(**json.loads(Path(sys.argv[2]).read_text())))
    sys.stdout.flush()
    os._exit(code)  # vLLM's own end can hang, and nothing is left to do
