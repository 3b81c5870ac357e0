"""NVTX ranges: names, in a profiler's timeline, of what the host is doing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch


def ranges(device: torch.device, wanted: bool) -> Callable[[str], AbstractContextManager[object]]:
    """Return what opens a range under a name, to be closed when its block ends or raises.

    It does nothing where no ranges are wanted, or the device is not CUDA.
    """
    return torch.cuda.nvtx.range if wanted and device.type == "cuda" else nullcontext
