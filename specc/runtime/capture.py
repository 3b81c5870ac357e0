"""One CUDA graph per bucket: the whole step, forwards included, captured once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .errors import BindError
from .frame import Frame
from .plan import Plan

WARM_UPS = 2


class Graphs:
    """Graphs of the step by bucket.

    Args:
        plan: must plan the whole step as one graph, else BindError.
        device: a CUDA device.
        run: runs the step eagerly on a bucket's static memory, on the current stream, and returns its frame.
        idle: makes the inputs a batch of padding rows.

    """

    def __init__(self, plan: Plan, device: torch.device, run: Callable[[int], Frame], idle: Callable[[], None]) -> None:
        """Capture every bucket, the largest first, in one memory pool."""
        check_capturable(plan)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._frames: dict[int, Frame] = {}
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            idle()
            self._warm_up(plan.buckets, run)
        torch.cuda.synchronize(device)
        for bucket in reversed(plan.buckets):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                self._frames[bucket] = run(bucket)
            self._graphs[bucket] = graph

    def _warm_up(self, buckets: Sequence[int], run: Callable[[int], Frame]) -> None:
        """Run every bucket before any capture: it loads all machine code and sizes the forwards' workspaces."""
        for bucket in reversed(buckets):
            for _ in range(WARM_UPS):
                run(bucket)

    def replay(self, bucket: int) -> Frame:
        """Queue the graph of `bucket` on the current stream; the frame's memory then holds its results."""
        self._graphs[bucket].replay()
        return self._frames[bucket]


def check_capturable(plan: Plan) -> None:
    """BindError unless the plan captures every node of the step in one graph."""
    nodes = tuple(node.name for node in plan.nodes("step"))
    if not any(c.entry == "step" and tuple(c.nodes) == nodes for c in plan.captures):
        raise BindError("the plan does not capture the step as one graph; bind with capture=False")
