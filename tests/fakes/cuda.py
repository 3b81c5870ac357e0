"""A torch.cuda that captures by writing down what a backend is told to launch, and replays what was written down.

A replay launches the captured nodes on the captured frame, as a CUDA graph would: on the same memory, with no batch, no
result of a forward and no Python argument of the new step in reach.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import pytest
import torch
from programs import brought

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.entry.frame import Frame
from specc.runtime.graphs import capture as capture_module
from specc.runtime.plan.nodes import Computed

GRAPH_BYTES = 4096
"""What the fake reserves for every graph, times the place of the graph in the order of capture."""


class FakeGraph:
    """A CUDA graph: what it does, in order."""

    def __init__(self, log: list[tuple[str, Any]]) -> None:
        self.nodes: list[Callable[[], object]] = []
        self.log = log

    def replay(self) -> None:
        assert self.nodes
        self.log.append(("replay", self))
        for node in self.nodes:
            node()


class FakeStream:
    """A stream that is waited for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def wait_stream(self, stream: object) -> None:
        assert stream is not self


class FakeCuda:
    """Stands in for what capturing asks of torch.cuda.

    Attributes:
        log: everything, in order.
        graph: the graph that is being captured.

    """

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        self.graph: FakeGraph | None = None
        self.reserved = self.captures = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the functions of torch.cuda."""
        fakes: dict[str, Any] = {
            "graph_pool_handle": lambda: "pool",
            "Stream": FakeStream,
            "current_stream": FakeStream,
            "stream": self.stream,
            "synchronize": lambda device: self.log.append(("synchronize", device)),
            "memory_reserved": lambda device: self.reserved,
            "CUDAGraph": lambda: FakeGraph(self.log),
            "graph": self.capture,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(capture_module, "check_device", lambda device: None)

    @contextlib.contextmanager
    def capture(self, graph: FakeGraph, *, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        """As `torch.cuda.graph`."""
        self.log.append(("begin", pool))
        assert isinstance(stream, FakeStream)
        assert capture_error_mode == "thread_local"
        assert self.graph is None
        assert not gc.isenabled()  # what is collected may be a graph, and no graph may be destroyed now
        self.graph, self.reserved = graph, 0  # memory that is free goes back before a capture
        yield
        self.graph, self.captures = None, self.captures + 1
        self.log.append(("end", pool))

    @contextlib.contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        """As `torch.cuda.stream`."""
        self.log.append(("on", stream))
        yield
        self.log.append(("off", stream))


class FakeBackend(ReferenceBackend):
    """Launches now, or writes down that it shall: nothing runs while it is captured.

    Attributes:
        launched: names of nodes that were launched outside of graphs.

    """

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__(brought())
        self._cuda, self.launched = cuda, list[str]()

    def launch(self, node: Computed, frame: Frame) -> None:
        graph = self._cuda.graph
        if graph is None:
            self.launched.append(node.name)
            super().launch(node, frame)
            return
        self._cuda.reserved += GRAPH_BYTES * (self._cuda.captures + 1)
        captured = copy(frame)  # a graph keeps addresses, whoever lets go of the tensors there
        graph.nodes.append(lambda: ReferenceBackend.launch(self, node, captured))


class FakeNvtx:
    """Stands in for torch.cuda.nvtx: ranges that are open, innermost last.

    Attributes:
        open: their names.

    """

    def __init__(self) -> None:
        self.open: list[str] = []
        self._pushed: list[str] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace what pushes and pops."""
        monkeypatch.setattr(torch.cuda.nvtx, "range_push", self._push)
        monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: self.open.pop())

    def _push(self, name: str) -> None:
        self.open.append(name)
        self._pushed.append("/".join(self.open))

    def take(self) -> list[str]:
        """Ranges that were opened since the last time, each behind those that it was opened in."""
        taken, self._pushed = self._pushed, []
        return taken
