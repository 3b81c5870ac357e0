"""How launch nodes are executed: by reference semantics on the CPU, by machine code on CUDA."""

from __future__ import annotations

from typing import Protocol

from ..frame import Frame
from ..plan import Launch


class Backend(Protocol):
    """Executes launch nodes on the memory of a frame."""

    def launch(self, node: Launch, frame: Frame) -> None:
        """Do what the node's ops say; on CUDA, queue it on the current stream."""
        ...
