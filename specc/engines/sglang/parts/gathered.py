"""Forwards of a program exchange rows with those of other ranks where attention is data parallel.

Behind its attention a layer gathers the rows of all ranks, and each has to know how many there are of whom. SGLang's
graph runners say so once for a size of the batch, as all ranks have the same (`DecodeCudaGraphRunner`,
`global_num_tokens`). So it is here: every rank runs the same bucket, and all that is said of it is a constant.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Gathered:
    """How many rows each rank has in a forward; nothing where attention is not data parallel."""

    def __init__(self, device: torch.device) -> None:
        """Counts are told on this device, where the rows of this rank are."""
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        self._groups, self._of_group = parallel.attn_dp_size, parallel.attn_tp_size  # a group has requests of its own
        self._device = device
        self._counts: dict[int, Tensor] = {}

    def give(self, batch: Any, scored: int, *, prefills: bool = False) -> None:
        """Say of a forward, which has as many tokens on every rank, that so many of them are scored on each.

        SGLang's runner says the rest of a forward that `prefills`.
        """
        if self._groups == 1:
            return
        from sglang.srt.layers.dp_attention import DpPaddingMode, set_dp_buffer_len, set_is_extend_in_batch

        tokens = len(batch.input_ids)
        batch.global_num_tokens_cpu, batch.global_num_tokens_gpu = self._of(tokens)
        batch.global_num_tokens_for_logprob_cpu, batch.global_num_tokens_for_logprob_gpu = self._of(scored)
        batch.is_extend_in_batch = prefills
        if prefills:
            return
        mode = DpPaddingMode.get_default_mode_in_cuda_graph()
        if tokens % self._of_group:  # ranks of a group share out the rows of a gather
            mode = DpPaddingMode.SUM_LEN
        batch.dp_padding_mode, batch.global_dp_buffer_len = mode, tokens * self._groups
        counts = batch.global_num_tokens_cpu
        set_dp_buffer_len(batch.global_dp_buffer_len, tokens, mode.is_max_len(), counts, batch.global_num_tokens_gpu)
        set_is_extend_in_batch(False)

    def _of(self, rows: int) -> tuple[list[int], Tensor]:
        """So many of each group, on the host and i64[groups] on the device, there always in the same memory."""
        if rows not in self._counts:
            self._counts[rows] = torch.full((self._groups,), rows, device=self._device)
        return [rows] * self._groups, self._counts[rows]
