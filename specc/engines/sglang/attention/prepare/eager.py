"""SGLang's own preparation, made anew for each batch: any attention backend of a server that captures no graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..backend import StepAttention


class Eager(StepAttention):
    """`init_forward_metadata` of each backend."""

    def draft(self, step: int, batch: Any) -> Any:
        """See `StepAttention`."""
        if step == 0:
            self._roles.container.init_forward_metadata(batch)
        return self._roles.draft[step]

    def block(self, batch: Any, width: int) -> Any:
        """See `StepAttention`."""
        self._roles.block.init_forward_metadata(batch)
        return self._roles.block

    def target(self, batch: Any, width: int, mask: Tensor | None, counts: Tensor | None) -> Any:
        """See `StepAttention`."""
        self._roles.verify.init_forward_metadata(batch)
        return self._roles.verify

    def extend(self, batch: Any, seq_lens: Tensor, width: int) -> Any:
        """See `StepAttention`."""
        rows = torch.arange(len(seq_lens), dtype=torch.int32, device=seq_lens.device)
        batch.extend_seq_lens = torch.full_like(rows, width)
        batch.extend_prefix_lens = seq_lens.to(torch.int32)
        batch.extend_start_loc = rows * width
        batch.extend_seq_lens_cpu = [width] * len(seq_lens)
        self._roles.extend.init_forward_metadata(batch)
        return self._roles.extend
