"""Forwards of a draft in vLLM, as a program calls them: its model, with attention over tokens that the program names."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor


class Forwards:
    """The callbacks `extend` and `draft` of a program, by the draft of one of vLLM's speculators.

    `batch` is vLLM's InputBatch of the step under way, whose block tables vLLM has gathered.
    """

    def __init__(self, speculator: Any, result: Any) -> None:
        """speculator: with its attention in place; result: the program's `Forward`."""
        self._speculator, self._result = speculator, result
        self.batch: Any = None
        most = speculator.max_num_reqs + 1
        self._starts = np.arange(most, dtype=np.int32)
        self._starts_here = torch.arange(most, dtype=torch.int32, device=speculator.device)

    def extend(
        self, *, tokens: Tensor, positions: Tensor, slots: Tensor, select: Tensor, hidden: Tensor | None = None, **_: Any
    ) -> Any:
        """The draft over A tokens i64[b, A] of every request; logits and hidden states of the rows `select` i64[b]."""
        last, fed = self._run(tokens, positions, slots, hidden, ahead=tokens.shape[1])
        last, fed = last[select], fed[select]
        return self._result(self._logits(last, 0), fed)

    def draft(
        self, *, step: int, tokens: Tensor, positions: Tensor, slots: Tensor, hidden: Tensor | None = None, **_: Any
    ) -> Any:
        """The draft over one token i64[b, 1] of every request; logits T[b, 1, V] and hidden states T[b, 1, W]."""
        last, fed = self._run(tokens, positions, slots, hidden, ahead=tokens.shape[1] + 1 + step)
        return self._result(self._logits(last, step + 1)[:, None], fed[:, None])

    def _logits(self, hidden: Tensor, step: int) -> Tensor:
        return self._speculator.compute_draft_logits(hidden, step).contiguous()

    def _run(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, hidden: Tensor | None, ahead: int
    ) -> tuple[Tensor, Tensor]:
        """Hidden states T[b * n, W] for logits, and for the next forward, of tokens i64[b, n].

        ahead: how many tokens more than the step's the longest text may have then.
        """
        speculator, buffers = self._speculator, self._speculator.input_buffers
        (requests, width), slots = tokens.shape, slots.reshape(-1)
        count = requests * width
        buffers.input_ids[:count].copy_(tokens.view(-1))
        buffers.positions[:count].copy_(positions.view(-1))
        torch.mul(self._starts_here[: requests + 1], width, out=buffers.query_start_loc[: requests + 1])
        torch.add(positions[:, -1], 1, out=buffers.seq_lens[:requests])
        described = BatchExecutionDescriptor(cg_mode=CUDAGraphMode.NONE, num_tokens=count, num_reqs=requests)
        metadata = speculator._build_attn_metadata(
            num_reqs=requests,
            batch_desc=described,
            query_start_loc_np=self._starts[: requests + 1] * width,
            seq_lens_cpu_upper_bound=self.batch.seq_lens_cpu_upper_bound,
            step=ahead,
            slot_mappings=[slots] * len(speculator.kv_cache_config.kv_cache_groups),
        )
        layers = dict.fromkeys(speculator.draft_attn_layer_names, slots)
        return speculator.run_draft(count, hidden, metadata, layers)
