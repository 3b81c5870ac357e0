"""NVTX ranges: names, in a profiler's timeline, of the nodes that the host launches or calls."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..plan.nodes import Node
from .frame import Frame


def in_ranges(execute: Callable[[Node, Frame], None]) -> Callable[[Node, Frame], None]:
    """The same, each node within a range of its name, which ends when the node raises too."""

    def named(node: Node, frame: Frame) -> None:
        with torch.cuda.nvtx.range(node.name):
            execute(node, frame)

    return named
