"""What SGLang keeps of experts that tokens went to: those of a forward in one buffer, those of texts by KV slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import torch
from torch import Tensor

from .sglang_modules import SRT, at

NOTHING = -9


@at("state_capturer.base")
class BaseTopkCapturer:
    """SGLang's capturer in a server that returns experts.

    `current` is that of the server that runs, None where it returns none.

    Attributes:
        device_cache: its `buffer` i32[rows, layers, n + shared], where layers write those of a forward.
        host_cache: its `buffer` i32[slots, layers, n].

    """

    current: ClassVar[BaseTopkCapturer | None] = None

    def __init__(self, rows: int, slots: int, layers: int, topk: int, shared: int = 0) -> None:
        self.num_layers, self.topk_size = layers, topk
        self.device_cache = SimpleNamespace(
            buffer=torch.full((rows, layers, topk + shared), NOTHING, dtype=torch.int32)
        )
        self.host_cache = SimpleNamespace(buffer=torch.full((slots, layers, topk), NOTHING, dtype=torch.int32))

    def capture(self, experts: Tensor) -> None:
        """Write those [n, layers, k] of a forward; behind them stand shared ones."""
        rows = self.device_cache.buffer[: len(experts)].fill_(NOTHING)
        rows[..., : self.topk_size] = experts


@at("state_capturer.base")
@dataclass
class TopkCaptureOutput:
    out_cache_loc: Tensor
    topk: Tensor
    host_cache: SimpleNamespace

    def map_device_tensors(self, fn: Callable[[Tensor], Tensor]) -> None:
        self.out_cache_loc, self.topk = fn(self.out_cache_loc), fn(self.topk)

    def finalize(self) -> None:
        self.host_cache.buffer[self.out_cache_loc] = self.topk


SRT.put("state_capturer.routed_experts", get_global_experts_capturer=lambda: BaseTopkCapturer.current)
