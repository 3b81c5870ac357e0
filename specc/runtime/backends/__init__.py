"""How the nodes that a program computes are executed: by reference semantics, or by machine code on CUDA."""

from __future__ import annotations

from typing import Protocol

from ..entry.frame import Frame
from ..plan.nodes import Computed


class Backend(Protocol):
    """Executes nodes that the program computes on the memory of a frame."""

    def launch(self, node: Computed, frame: Frame) -> None:
        """Do what the node's ops say; on CUDA, queue it on the current stream."""
        ...
