"""What the engine's thread of vLLM does in a step, by part, and for what the GPU is idle between launches.

The parts are functions of vLLM's, which are timed where they are called. What one part calls of another counts for the
other. A program's verification is in `sample`, its drafts are in `drafts`, like vLLM's own.
"""

from __future__ import annotations

import functools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

PARTS: dict[str, dict[str, str]] = {
    "scheduler": {"core.scheduler": "schedule get_grammar_bitmask"},
    "requests": {
        "runner": "finish_requests free_states add_requests update_requests",
        "runner.block_tables": "apply_staged_writes",
    },
    "inputs": {"runner": "gather_batch_req_state prepare_inputs"},
    "slots": {"runner": "prepare_attn"},
    "metadata": {"runner.model_state": "prepare_attn"},
    "forward": {"runner.model": "forward", "runner.cudagraph_manager": "run_fullgraph run_pw_graph"},
    "rest of forward": {"runner": "execute_model"},
    "sample": {"runner": "sample"},
    "to the host": {"outputs.AsyncOutput": "__init__"},
    "postprocess": {"runner": "postprocess_sampled"},
    "drafts": {"runner.speculator": "propose"},
    "rest of sample": {"runner": "sample_tokens"},
    "wait": {"outputs.AsyncOutput": "get_output"},
    "output": {"core.scheduler": "update_from_output"},
    "texts": {"engine.output_processor": "process_outputs"},
}
"""A part -> where its functions are -> their names. What is missing, as a graph of a server without any, takes no time.

`rest of forward` looks for a graph, and tells the draft and connectors of the step. `rest of sample` stores drafts.
`wait` is until the GPU has made the tokens, and makes lists of them. `texts` is another process where a server answers.
"""
ENGINE = "engine"
"""All else that the thread does in a step."""
PAIRS = 8
"""Between how many pairs of launches the GPU is idle for longest."""
Result = dict[str, Any]


class Clock:
    """Seconds of each part, those of parts within it left out; calls of one thread."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._inner: list[float] = []

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same, whose time is added to a part."""

        @functools.wraps(call)
        def measured(*args: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            begin = time.perf_counter()
            try:
                return call(*args, **named)
            finally:
                whole = time.perf_counter() - begin
                self.spent[part] += whole - self._inner.pop()
                if self._inner:
                    self._inner[-1] += whole

        return measured

    @contextmanager
    def over(self, places: dict[str, Any]) -> Iterator[None]:
        """Time all parts whose objects are below these places, by the first word of where they are."""
        with ExitStack() as stack:
            for part, of in PARTS.items():
                for place, names in of.items():
                    first, *rest = place.split(".")
                    owner = functools.reduce(lambda found, name: getattr(found, name, None), rest, places[first])
                    for name in names.split():
                        if (call := getattr(owner, name, None)) is not None:
                            stack.enter_context(_replaced(owner, name, self.timed(part, call)))
            yield


@contextmanager
def _replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    """An attribute for a while; what the object did not have of its own is its class's again."""
    before = vars(owner).get(name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        delattr(owner, name) if before is None else setattr(owner, name, before)


def by_part(spent: dict[str, float], seconds: float, steps: int) -> Result:
    """Microseconds a step of all parts, in their order, and of the `engine`; which together took so many seconds."""
    step, parts = 1e6 * seconds / steps, {part: 1e6 * spent.get(part, 0.0) / steps for part in PARTS}
    return {"steps": steps, "step_us": step, "us": parts | {ENGINE: step - sum(parts.values())}}


@dataclass
class Launch:
    """What one launch ran on the GPU: how many kernels and copies, the first one's name, from when to when in us."""

    count: int
    name: str
    begin: float
    end: float

    def __str__(self) -> str:
        return self.name[:60] if self.count == 1 else f"graph of {self.count}"


def idle(events: Iterable[tuple[int, str, float, float]], steps: int) -> Result:
    """For what the GPU was idle in so many steps: in launches, between them, and between which the most.

    An event is the number of its launch, its name, and when it began and ended, in us.
    """
    rows = sorted(events, key=lambda event: event[2])
    launches: dict[int, Launch] = {}
    for number, name, begin, end in rows:
        launch = launches.setdefault(number, Launch(0, name, begin, end))
        launch.count, launch.end = launch.count + 1, max(launch.end, end)
    within, between, pairs, times = 0.0, 0.0, defaultdict[tuple[str, str], float](float), Counter[tuple[str, str]]()
    last, busy_until = None, 0.0
    for number, _, begin, end in rows:
        gap = max(0.0, begin - busy_until) if last is not None else 0.0
        if number == last:
            within += gap
        elif last is not None:
            pair = str(launches[last]), str(launches[number])
            between, pairs[pair], times[pair] = between + gap, pairs[pair] + gap, times[pair] + 1
        if end >= busy_until:
            last, busy_until = number, end
    most = sorted(pairs, key=lambda pair: -pairs[pair])[:PAIRS]
    return {
        "idle_within_us": within / steps,
        "idle_between_us": between / steps,
        "idle_most": [[*pair, times[pair] / steps, pairs[pair] / steps] for pair in most],
    }


def table(runs: dict[str, Result]) -> list[str]:
    """Lines about runs whose parts were timed: a table of microseconds a step, of the thread and of the GPU."""
    heads = ["run", "B", "step", *PARTS, ENGINE, "GPU busy", "GPU idle", "idle, profiled: between", "within"]
    lines = ["", "Microseconds a step of the engine's thread, by its parts, and of the GPU (host.py):", ""]
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    timed = [(name, run, key) for name, run in runs.items() for key in run if key.startswith("host_")]
    for name, run, key in timed:
        batch, step = key.removeprefix("host_"), run[key]["step_us"]
        traced = run.get(f"profile_{batch}", {})
        busy = traced.get("gpu_us_per_step")
        gpu = [busy, step - busy, traced["idle_between_us"], traced["idle_within_us"]] if busy else [None] * 4
        numbers: list[float | None] = [step, *run[key]["us"].values(), *gpu]
        cells = ["-" if number is None else f"{number:.0f}" for number in numbers]
        lines.append(f"| {' | '.join([name, batch[1:], *cells])} |")
    for name, run, key in timed:
        pairs = run.get(f"profile_{key.removeprefix('host_')}", {}).get("idle_most", ())
        lines += ["", f"{name}, {key.removeprefix('host_')}, the GPU is idle between:"] * bool(pairs)
        lines += [
            f"* {launch}, and {other}: {us:.1f} us in a step, {times:.2f} times" for launch, other, times, us in pairs
        ]
    return lines if timed else []
