"""The step cut into graphs: per bucket a CUDA graph of every run of nodes between two calls that no graph holds.

Those are the calls of the host, and, where the forwards cannot be captured, the forwards. A graph holds the addresses
of what it reads, and a call that is not captured may return its results anywhere. So the addresses are kept with the
graph, and a segment whose operands have moved is launched node by node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from ..entry.frame import Frame, Progress
from ..plan.halves import halves
from ..plan.nodes import OUTSIDE, Capture, External, Given, Node, read_by
from ..plan.plan import Plan
from .capture import Recorder, Replays, warm_up


@dataclass(frozen=True)
class Segment:
    """Nodes between two calls.

    `operands` are the buffers that the engine returns before it and the nodes read, `results` those that it returns
    meanwhile and others read.
    """

    name: str
    nodes: tuple[Node, ...]
    operands: tuple[str, ...]
    results: tuple[str, ...]

    def places(self, frame: Frame) -> list[int]:
        """Where the operands of a run are."""
        return [frame.buffer(name).data_ptr() for name in self.operands]


@dataclass(frozen=True)
class Recorded:
    """The graph of a segment in one bucket, where its operands were, and the results, by buffer."""

    graph: torch.cuda.CUDAGraph
    places: list[int]
    results: Mapping[str, Tensor]


class SegmentGraphs:
    """Graphs of the step's segments, by bucket.

    Args:
        plan: the program.
        graphs: what is captured, as the plan has it; other nodes are called in every step.
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
        graphs: Sequence[Capture],
        device: torch.device,
        start: Callable[[int], Frame],
        execute: Callable[[Node, Frame], None],
        idle: Callable[[], None],
        beside: Recorder | None = None,
        largest: int | None = None,
    ) -> None:
        """Capture every bucket, the largest first, in one memory pool: that of other graphs, or a new one.

        With `largest` buckets beyond it are not captured: their nodes are launched one by one.
        """
        buckets = [bucket for bucket in plan.buckets if largest is None or bucket <= largest]
        self.replays = Replays()
        self._start, self._execute = start, execute
        self._halves = [_parts(plan, graphs, nodes) for nodes in halves(plan)]
        self._recorded: dict[tuple[int, str], Recorded] = {}
        self.recorder = recorder = Recorder(device, beside)
        segments = [part for parts in self._halves for part in parts if isinstance(part, Segment)]
        forwards = any(isinstance(node, OUTSIDE) for part in segments for node in part.nodes)
        with recorder.beforehand() if forwards else contextlib.nullcontext():
            idle()
            warm_up(buckets, lambda bucket: self._run(self._launch, bucket, Progress()))
        for bucket in reversed(buckets):
            self._run(partial(self._capture, recorder), bucket, Progress())
        self.bytes: Mapping[int, int] = recorder.bytes

    def replay(self, bucket: int, progress: Progress) -> Frame:
        """Queue a step of `bucket` on the current stream: calls are made, segments replayed where they can be."""
        return self._run(self._replay, bucket, progress)

    def replay_half(self, half: int, frame: Frame, progress: Progress) -> None:
        """As `replay` one of `halves` of a rotated step, in the frame that all have."""
        self._queue(self._halves[half], self._replay, frame, progress)

    def _run(self, handle: Callable[[Segment, Frame], None], bucket: int, progress: Progress) -> Frame:
        frame = self._start(bucket)
        for parts in self._halves:
            self._queue(parts, handle, frame, progress)
        return frame

    def _queue(
        self, parts: Sequence[Part], handle: Callable[[Segment, Frame], None], frame: Frame, progress: Progress
    ) -> None:
        for part in parts:
            how = partial(handle, part) if isinstance(part, Segment) else partial(self._execute, part)
            progress.queue(_names(part), frame, partial(how, frame))

    def _launch(self, segment: Segment, frame: Frame) -> None:
        for node in segment.nodes:
            self._execute(node, frame)

    def _capture(self, recorder: Recorder, segment: Segment, frame: Frame) -> None:
        """Capture, then replay: the next call reads what the segment computes."""
        graph = recorder.record(frame.rows, partial(self._launch, segment, frame))
        results = {name: frame.buffer(name) for name in segment.results}
        self._recorded[frame.rows, segment.name] = Recorded(graph, segment.places(frame), results)
        graph.replay()

    def _replay(self, segment: Segment, frame: Frame) -> None:
        recorded = self._recorded.get((frame.rows, segment.name))
        if recorded is None:
            self._launch(segment, frame)
        elif recorded.places == segment.places(frame):
            recorded.graph.replay()
            frame.restore(recorded.results)
            self.replays.replayed += 1
        else:
            self._launch(segment, frame)
            self.replays.moved[segment.name] += 1


Part: TypeAlias = Segment | External | Given


def _names(part: Part) -> list[str]:
    return [node.name for node in (part.nodes if isinstance(part, Segment) else (part,))]


def _parts(plan: Plan, graphs: Sequence[Capture], half: Sequence[Node]) -> list[Part]:
    """The nodes of a step, or of half of one, in order: segments, and the calls between them."""
    nodes = {node.name: node for node in half}
    heads = {graph.nodes[0]: graph for graph in graphs if graph.entry == "step"}
    parts: list[Part] = []
    for name, node in nodes.items():
        if name in heads:
            parts.append(_segment(plan, heads[name].name, [nodes[node] for node in heads[name].nodes]))
        elif isinstance(node, OUTSIDE) and not any(name in graph.nodes for graph in heads.values()):
            parts.append(node)
    return parts


def _segment(plan: Plan, name: str, nodes: Sequence[Node]) -> Segment:
    """Nodes that are captured together, and what of the engine's comes into them and leaves them."""
    values = [value for node in nodes if isinstance(node, OUTSIDE) for value in node.results.values()]
    returned = {plan.values[value].buffer for value in values}
    read, wanted = (
        {home.name for node in of for name in read_by(node) if (home := plan.home(name)) and home.owner == "engine"}
        for of in (nodes, [node for node in plan.nodes("step") if node not in nodes])
    )
    wanted |= {home.name for output in plan.outputs if (home := plan.home(output.value)) is not None}
    return Segment(name, tuple(nodes), tuple(sorted(read - returned)), tuple(sorted(returned & wanted)))
