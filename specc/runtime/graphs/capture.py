"""One CUDA graph per bucket: the whole step, forwards included, captured once and replayed."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from ..entry.frame import Frame, Progress
from ..errors import BindError
from ..plan.halves import runs
from ..plan.nodes import External, Given
from ..plan.plan import Plan

WARM_UPS = 2


@dataclass
class Replays:
    """What has become of captured graphs since they were captured.

    Attributes:
        replayed: how often a graph was replayed; with segments, several in a step.
        moved: by segment, how often it was launched kernel by kernel instead, because what a forward returned was at
            another address than at capture.

    """

    replayed: int = 0
    moved: Counter[str] = field(default_factory=Counter)


class Recorder:
    """Captures graphs into one memory pool, on a stream of its own.

    Attributes:
        stream: the stream.
        pool: the memory pool, whose memory torch gives back to captures on the same stream only.
        bytes: by bucket, how much more memory torch has reserved while its graphs were captured.

    """

    def __init__(self, device: torch.device, beside: Recorder | None = None) -> None:
        """Use pool and stream of other graphs, none of which ever runs together with those to come; else new ones.

        BindError when the device is no CUDA device.
        """
        check_device(device)
        self.stream = torch.cuda.Stream(device) if beside is None else beside.stream
        self.bytes = Counter[int]()
        self._device = device
        self.pool = torch.cuda.graph_pool_handle() if beside is None else beside.pool

    @contextlib.contextmanager
    def beforehand(self) -> Iterator[None]:
        """What is queued in the block runs on the stream of the captures, and has run when it ends."""
        self.stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.synchronize(self._device)

    def record(self, bucket: int, body: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """The graph of what `body` queues, which is captured and not run."""
        graph = torch.cuda.CUDAGraph()
        where = torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local")
        with _uncollected(), where:
            before = torch.cuda.memory_reserved(self._device)
            body()
            self.bytes[bucket] += torch.cuda.memory_reserved(self._device) - before
        return graph


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile: a graph of another step, destroyed during a capture, would invalidate it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Graphs:
    """Graphs of the step by bucket.

    Args:
        plan: it captures the step as one graph, see `check_capturable`.
        device: a CUDA device.
        run: runs the step eagerly on a bucket's static memory, on the current stream, and returns its frame.
        idle: makes the inputs a batch of padding rows.

    Attributes:
        replays: counts.
        bytes: of the graphs, by bucket, see `Recorder`.
        recorder: what captured them.

    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        run: Callable[[int], Frame],
        idle: Callable[[], None],
        beside: Recorder | None = None,
    ) -> None:
        """Capture every bucket, the largest first, in one memory pool: that of other graphs, or a new one."""
        self.replays = Replays()
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._frames: dict[int, Frame] = {}
        self._nodes = frozenset(node.name for node in plan.nodes("step"))
        self.recorder = recorder = Recorder(device, beside)
        with recorder.beforehand():
            idle()
            warm_up(plan.buckets, run)
        for bucket in reversed(plan.buckets):
            self._graphs[bucket] = recorder.record(bucket, lambda bucket=bucket: self._keep(bucket, run(bucket)))
        self.bytes = recorder.bytes

    def _keep(self, bucket: int, frame: Frame) -> None:
        """Keep a captured frame, and of its forwards' memory no more than is read afterwards: other graphs use it."""
        frame.forget()
        self._frames[bucket] = frame

    def replay(self, bucket: int, progress: Progress) -> Frame:
        """Queue the graph of `bucket` on the current stream; the frame's memory then holds its results."""
        frame = self._frames[bucket]
        progress.queue(self._nodes, frame, partial(self._replay, self._graphs[bucket]))
        return frame

    def _replay(self, graph: torch.cuda.CUDAGraph) -> None:
        graph.replay()
        self.replays.replayed += 1


def warm_up(buckets: Sequence[int], run: Callable[[int], object]) -> None:
    """Run every bucket before any capture: it loads all machine code and sizes the forwards' workspaces."""
    for bucket in reversed(buckets):
        for _ in range(WARM_UPS):
            run(bucket)


def check_device(device: torch.device) -> None:
    """BindError unless it is a CUDA device."""
    if device.type != "cuda":
        raise BindError("only a program on CUDA can be captured")


def check_capturable(plan: Plan) -> None:
    """BindError unless the plan captures every run of the step's nodes between two calls of the host in one graph."""
    wanted = runs(plan, lambda node: isinstance(node, Given) or (isinstance(node, External) and node.host))
    if wanted != [tuple(capture.nodes) for capture in plan.captures if capture.entry == "step"]:
        raise BindError("the plan does not capture the step as one graph; bind with capture=False")
