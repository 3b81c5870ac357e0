"""Experts that are shared out over ranks (`--ep-size`): rows of padding in a program's forwards go to none of them.

A bucket has more rows than a batch. SGLang's layers read on the device how many rows of a forward are tokens, and
SGLang's own graph runner writes that number before each replay (`DecodeCudaGraphRunner`, `num_token_non_padded`). Here
it is written before each step, once for all forwards. Where attention is data parallel experts get rows of all ranks,
in which padding stands anywhere: SGLang bounds none of them, and reads no such number (`moe_num_token_non_padded`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import enable_num_token_non_padded


class Padding:
    """How many rows of each forward of a step are tokens; nothing where experts are not shared out.

    Args:
        shapes: those of a program's steps, S drafts, K branches and N nodes.
        device: that of the forwards.

    """

    def __init__(self, shapes: Iterable[Any], device: torch.device) -> None:
        """No row is padding before anything is said."""
        self._asked = enable_num_token_non_padded()
        widest = max(max(*shape, shape.num_steps + 1) for shape in shapes)  # an accepted path has S + 1
        self._widths = torch.arange(widest + 1, dtype=torch.int32, device=device)
        self._tokens = torch.full_like(self._widths, torch.iinfo(torch.int32).max)

    def say(self, requests: int) -> None:
        """Before a step: its batch has so many requests, and padding behind them."""
        if self._asked:
            torch.mul(self._widths, requests, out=self._tokens)

    def give(self, batch: Any) -> None:
        """Give a forward the number of its tokens i32[1], at an address that stays."""
        if self._asked:
            width = len(batch.input_ids) // batch.batch_size
            batch.num_token_non_padded = self._tokens[width : width + 1]
