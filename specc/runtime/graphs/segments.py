"""The step cut at its forwards: per bucket a CUDA graph of every run of other nodes, the forwards called in between.

A graph holds the addresses of what it reads, and a forward that is not captured may return its results anywhere. So the
addresses are kept with the graph, and a segment whose operands have moved is launched node by node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from ..frame import Frame, Progress
from ..plan.nodes import Computed, External, Node
from ..plan.plan import Plan
from .capture import Recorder, Replays, warm_up


@dataclass(frozen=True)
class Segment:
    """Nodes between two forwards; `operands` are the buffers that forwards return and the nodes read."""

    name: str
    nodes: tuple[Computed, ...]
    operands: tuple[str, ...]

    def places(self, frame: Frame) -> list[int]:
        """Where the operands of a run are."""
        return [frame.buffer(name).data_ptr() for name in self.operands]


@dataclass(frozen=True)
class Recorded:
    """The graph of a segment in one bucket, and where its operands were."""

    graph: torch.cuda.CUDAGraph
    places: list[int]


class SegmentGraphs:
    """Graphs of the step's segments, by bucket.

    Args:
        plan: the program.
        device: a CUDA device.
        start: makes the frame of a run of a bucket.
        execute: launches a node, or calls its forward, on the current stream.
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
        start: Callable[[int], Frame],
        execute: Callable[[Node, Frame], None],
        idle: Callable[[], None],
        beside: Recorder | None = None,
    ) -> None:
        """Capture every bucket, the largest first, in one memory pool: that of other graphs, or a new one."""
        self.replays = Replays()
        self._start, self._execute = start, execute
        self._parts = _parts(plan)
        self._recorded: dict[tuple[int, str], Recorded] = {}
        self.recorder = recorder = Recorder(device, beside)
        idle()
        warm_up(plan.buckets, lambda bucket: self._run(self._launch, bucket, Progress()))
        for bucket in reversed(plan.buckets):
            self._run(partial(self._capture, recorder), bucket, Progress())
        self.bytes: Mapping[int, int] = recorder.bytes

    def replay(self, bucket: int, progress: Progress) -> Frame:
        """Queue a step of `bucket` on the current stream: forwards are called, segments replayed where they can be."""
        return self._run(self._replay, bucket, progress)

    def _run(self, handle: Callable[[Segment, Frame], None], bucket: int, progress: Progress) -> Frame:
        frame = self._start(bucket)
        for part in self._parts:
            how = partial(handle, part) if isinstance(part, Segment) else partial(self._execute, part)
            progress.queue(_names(part), frame, partial(how, frame))
        return frame

    def _launch(self, segment: Segment, frame: Frame) -> None:
        for node in segment.nodes:
            self._execute(node, frame)

    def _capture(self, recorder: Recorder, segment: Segment, frame: Frame) -> None:
        """Capture, then replay: the next forward reads what the segment computes."""
        graph = recorder.record(frame.rows, partial(self._launch, segment, frame))
        self._recorded[frame.rows, segment.name] = Recorded(graph, segment.places(frame))
        graph.replay()

    def _replay(self, segment: Segment, frame: Frame) -> None:
        recorded = self._recorded[frame.rows, segment.name]
        if recorded.places == segment.places(frame):
            recorded.graph.replay()
            self.replays.replayed += 1
        else:
            self._launch(segment, frame)
            self.replays.moved[segment.name] += 1


def _names(part: Segment | External) -> list[str]:
    return [node.name for node in (part.nodes if isinstance(part, Segment) else (part,))]


def _parts(plan: Plan) -> list[Segment | External]:
    """The step in order: segments, and the forwards between them."""
    nodes = {node.name: node for node in plan.nodes("step")}
    heads = {segment.nodes[0]: segment for segment in plan.segments}
    parts: list[Segment | External] = []
    for name, node in nodes.items():
        if isinstance(node, External):
            parts.append(node)
        elif name in heads:
            computed = [found for one in heads[name].nodes if not isinstance(found := nodes[one], External)]
            operands = sorted({buffer for one in computed for buffer in plan.engine_reads(one)})
            parts.append(Segment(heads[name].name, tuple(computed), tuple(operands)))
    return parts
