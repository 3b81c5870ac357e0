"""What the host pays to launch a captured graph, by its nodes: a step is such a graph, forwards included."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from specc.lab.measure.results.ratios import Spread
from specc.lab.measure.results.records import HostCost
from specc.lab.measure.timing import WARM_UPS, Run, capture, empty_kernel

NODES = (8, 64, 256, 1024)
"""Of the graphs: about those of a program's launches alone, and of programs with models of some to many layers."""
SAMPLES = 40
BUSY_BYTES, BUSY_COPIES = 1 << 26, 64
"""Copies that keep a GPU busy for a millisecond or more, while a graph is launched behind them."""


def launch_costs(device: torch.device, nodes: tuple[int, ...] = NODES) -> tuple[HostCost, ...]:
    """Host microseconds of a replay on a CUDA device, by the nodes of its graph, each an empty kernel."""
    source = torch.zeros(BUSY_BYTES, dtype=torch.uint8, device=device)
    target, empty = torch.empty_like(source), empty_kernel(device)

    def copy() -> None:
        target.copy_(source)

    def idle() -> None:
        torch.cuda.synchronize(device)

    busy = capture(copy, BUSY_COPIES)
    graphs = ((count, capture(empty, count)) for count in nodes)
    return tuple(HostCost(count, call_us(graph.replay, busy.replay, idle)) for count, graph in graphs)


def call_us(
    call: Run, busy: Run, idle: Run, samples: int = SAMPLES, clock: Callable[[], int] = time.perf_counter_ns
) -> Spread:
    """Host microseconds of a call behind work that the GPU has not done yet, so that nothing of it waits for the GPU.

    Args:
        call: what is timed.
        busy: work for the GPU, queued before each call, outside of the time.
        idle: waits until the GPU has done everything, before that.
        samples: calls that count, after a few that do not; two or more.
        clock: nanoseconds.

    """
    taken: list[float] = []
    for _ in range(WARM_UPS + samples):
        idle()
        busy()
        begin = clock()
        call()
        taken.append((clock() - begin) / 1000)
    idle()
    return Spread.over(taken[WARM_UPS:])
