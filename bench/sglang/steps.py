"""What a decode step launches, from a trace of torch's profiler: steps.py TRACE.json.gz STEPS [PLAN.json] prints JSON.

A step begins with its first graph; only the middle half of the trace's steps counts. What the GPU runs is of one of
these kinds:

* program: a kernel of the specc program, by the names in its plan.
* metadata: of attention, by name, in a graph or outside.
* outside: launched outside every graph, and none of the above.
* speculation: in a graph, of SGLang's own drafting and verification, by name.
* torch: in a graph, any other kernel of ATen or CUB: embeddings and casts, which belong to the forwards, but also glue
  that has no name of its own.
* forward: the rest of the graphs.

The first four are the glue. Where a step is several graphs, `between` counts what runs between them.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

Event = dict[str, Any]

METADATA = re.compile(
    r"create_flashinfer_kv_indices|generate_draft_decode_kv_indices|get_num_kv_splits|_draft_extend_metadata|"
    r"_decode_metadata_kernel|page_table|pack_verify_mask|packbits|kv_indptr|update_kv_lens_and_indices|"
    r"DeviceScan(Init)?Kernel|tensor_kernel_scan|cumsum|fill_tables|fill_lists|pack_mask",
    re.IGNORECASE,
)
"""Kernels that prepare attention. A sum of lengths is one of ATen's scans, which no forward of a dense model needs."""

SPECULATION = re.compile(
    r"draft_topk1|argmax|softmax(?!.*attn)|topk|sbtopk|mbtopk|radixFindKth|computeBlock|computeDigit|gatherTopK|"
    r"bitonicSort|RadixSort|ScanByKey|build_tree|build_chain|verify_tree|VerifyTreeGreedy|verify_commit|draft_extend|"
    r"assign_draft_cache|assign_extend_cache|assign_req_to_token|fill_accept|fill_bonus|gather_rows|small_copy|"
    r"copy_all_layer_kv_cache|triton_(poi|per|red)_fused|say_path|simulated_accept",
    re.IGNORECASE,
)
"""SGLang's drafting and verification, where it is in a graph, and what sets accepted lengths on either side."""

TORCH = re.compile(r"at::native|at_cuda_detail|at::cuda|cub::|thrust::|^Mem(cpy|set)")
GLUE = ("program", "metadata", "outside", "speculation")
KINDS = (*GLUE, "torch", "forward")
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
MOST_NAMES = 60


@dataclass(frozen=True)
class Replay:
    """One launch of a graph, and what it ran on the GPU."""

    issued: float
    begin: float
    end: float
    events: list[Event]


def read_events(path: Path) -> list[Event]:
    """The complete events of a trace."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def read_program(plan: Path) -> set[str]:
    """Names of the kernels of a program, as a GPU reports them."""
    return {kernel["function"] for kernel in json.loads(plan.read_text())["kernels"].values()}


def find_replays(events: Iterable[Event]) -> list[Replay]:
    """Launches of graphs in the order of time: a kernel is in one when its correlation is that of the launch."""
    events = list(events)
    launches = {correlation(e): e["ts"] for e in events if "GraphLaunch" in e.get("name", "")}
    graphs: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        number = correlation(event)
        if event.get("cat") in GPU and number is not None and number in launches:
            graphs[number].append(event)
    replays = [
        Replay(launches[number], min(e["ts"] for e in graph), max(e["ts"] + e["dur"] for e in graph), graph)
        for number, graph in graphs.items()
    ]
    return sorted(replays, key=lambda replay: replay.begin)


def correlation(event: Event) -> int | None:
    """What ties a kernel to the call that launched it."""
    return event.get("args", {}).get("correlation")


def classify(name: str, in_graph: bool, program: Collection[str]) -> str:
    """The kind of what the GPU runs."""
    if name in program:
        return "program"
    if METADATA.search(name):
        return "metadata"
    if not in_graph:
        return "outside"
    if SPECULATION.search(name):
        return "speculation"
    return "torch" if TORCH.search(name) else "forward"


def union(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def summarise(events: list[Event], steps: int, program: Collection[str] = ()) -> dict[str, Any]:
    """Counts and microseconds per step of a trace of about `steps` decode steps; "error" where there are too few."""
    gpu = [event for event in events if event.get("cat") in GPU]
    replays = find_replays(events)
    seen = sorted({e["name"] for e in gpu} & set(program))
    totals = {"graph_launches": len(replays), "gpu_events": len(gpu), "steps": steps, "program_kernels": seen}
    if not replays or not steps:
        eager = {"launches_per_step": len(gpu) / max(1, steps), "outside": names(gpu, max(1, steps))}
        return totals | eager | {"error": "no graph was launched"}
    per = max(1, round(len(replays) / steps))
    whole = len(replays) // per
    first, count = whole // 4, max(whole // 2, 1)
    if whole < 4:
        return totals | {"error": f"only {whole} steps of {per} graphs"}
    rows = replays[first * per : (first + count) * per]
    begin, end = rows[0].begin, replays[(first + count) * per].begin
    window = [event for event in gpu if begin <= event["ts"] < end]
    inside = {id(event) for replay in rows for event in replay.events}
    ahead = {"run_ahead_us": run_ahead(events, window, rows[::per])}
    return totals | ahead | measure(window, inside, rows, per, count, program) | host(events, begin, end, count)


def measure(
    window: Sequence[Event], inside: set[int], rows: Sequence[Replay], per: int, count: int, program: Collection[str]
) -> dict[str, Any]:
    """What the GPU does in `count` steps of `per` graphs each."""
    kinds = {id(event): classify(event["name"], id(event) in inside, program) for event in window}
    number, time = Counter[str](), Counter[str]()
    for event in window:
        number[kinds[id(event)]] += 1
        time[kinds[id(event)]] += event["dur"]
    busy = union((event["ts"], event["ts"] + event["dur"]) for event in window)
    outside = [event for event in window if id(event) not in inside]
    gaps = [(a.end, b.begin) for i, (a, b) in enumerate(pairwise(rows)) if (i + 1) % per]
    between = [event for event in outside if any(low <= event["ts"] < high for low, high in gaps)]
    graphs = [rows[i::per] for i in range(per)]
    step = [event for event in window if count == 1 or event["ts"] < rows[per].begin]
    categories = Counter(event["cat"].removeprefix("gpu_") for event in outside)
    return {
        "steps_measured": count,
        "graphs_per_step": per,
        "launches_per_step": per + len(outside) / count,
        "outside_per_step": {name: n / count for name, n in categories.items()},
        "between_per_step": len(between) / count,
        "gpu_busy_us": busy / count,
        "graph_kernels": [sum(len(replay.events) for replay in graph) / count for graph in graphs],
        "graph_same_kernels": all(len({len(replay.events) for replay in graph}) == 1 for graph in graphs),
        "graph_busy_us": [sum(e["dur"] for replay in graph for e in replay.events) / count for graph in graphs],
        "graph_span_us": [sum(replay.end - replay.begin for replay in graph) / count for graph in graphs],
        "kernels_by_kind": {kind: number[kind] / count for kind in KINDS},
        "us_by_kind": {kind: time[kind] / count for kind in KINDS},
        "glue_us": sum(time[kind] for kind in GLUE) / count,
        "glue_kernels": sum(number[kind] for kind in GLUE) / count,
        "between": names(between, count),
        "outside": names(outside, count),
        "in_graphs": {
            kind: names([e for e in window if kinds[id(e)] == kind and id(e) in inside], count) for kind in KINDS
        },
        "one_step": order(step, rows[:per], inside),
    }


def run_ahead(events: Iterable[Event], window: Iterable[Event], firsts: Sequence[Replay]) -> dict[str, float]:
    """How long before it starts on the GPU something is launched: the median over steps.

    "first" is of a step's first graph, "least" of whatever in the step is launched last before it starts: where that is
    next to nothing, the GPU waits for the host.
    """
    calls = {correlation(e): e["ts"] for e in events if e.get("cat") in CALLS and correlation(e) is not None}
    started: dict[int, float] = {}
    for event in sorted(window, key=lambda event: event["ts"]):
        number = correlation(event)
        if number is not None and number in calls:
            started.setdefault(number, event["ts"])
    begins = [replay.begin for replay in firsts]
    least = [float("inf")] * len(firsts)
    for number, at in started.items():
        step = bisect_right(begins, at) - 1
        least[step] = min(least[step], at - calls[number])
    return {
        "first": statistics.median(replay.begin - replay.issued for replay in firsts),
        "least": statistics.median(least),
    }


def names(events: Iterable[Event], count: int) -> list[list[Any]]:
    """[name, number per step, us per step], the most time first."""
    number, time = Counter[str](), Counter[str]()
    for event in events:
        number[event["name"][:120]] += 1
        time[event["name"][:120]] += event["dur"]
    return [[name, round(number[name] / count, 2), round(us / count, 2)] for name, us in time.most_common(MOST_NAMES)]


def order(events: Iterable[Event], graphs: Sequence[Replay], inside: set[int]) -> list[str]:
    """One step in the order of time: its graphs, and what is launched outside them."""
    lines = [(graph.begin, f"graph of {len(graph.events)} for {graph.end - graph.begin:.0f} us") for graph in graphs]
    lines += [(event["ts"], event["name"][:80]) for event in events if id(event) not in inside]
    return [f"{at - graphs[0].begin:.0f} us: {what}" for at, what in sorted(lines)]


def host(events: Iterable[Event], begin: float, end: float, count: int) -> dict[str, Any]:
    """The host's part: time of a step, calls of CUDA's and of torch's. The profiler makes all of them slower."""
    during = [event for event in events if begin <= event["ts"] < end]
    calls = [event for event in during if event.get("cat") in CALLS]
    waits = [event for event in calls if "Synchronize" in event["name"]]
    return {
        "wall_us": (end - begin) / count,
        "cuda_call_us": (sum(e["dur"] for e in calls) - sum(e["dur"] for e in waits)) / count,
        "wait_us": sum(e["dur"] for e in waits) / count,
        "cuda_calls": [
            [name, round(n / count, 2)] for name, n in Counter(e["name"] for e in calls).most_common(MOST_NAMES)
        ],
        "torch_ops": sum(event.get("cat") == "cpu_op" for event in during) / count,
    }


if __name__ == "__main__":
    kernels = read_program(Path(sys.argv[3])) if len(sys.argv) > 3 else set()
    print(json.dumps(summarise(read_events(Path(sys.argv[1])), int(sys.argv[2]), kernels), indent=1))
