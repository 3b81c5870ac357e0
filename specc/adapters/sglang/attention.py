"""Metadata of SGLang's attention, for forwards that a program calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from sglang.srt.layers.attention.triton_backend import ForwardMetadata
from torch import Tensor


def scored_tokens(worker: Any) -> Tensor | None:
    """The target's tokens i64[Vd] that the draft of an EAGLEWorkerV2 scores, in the order of its head; None for all."""
    return worker.draft_worker.hot_token_id


class Attention(ABC):
    """Prepares attention for the forwards of a step; every method returns the backend that then runs it."""

    def __init__(self, worker: Any) -> None:
        """Prepare the backends of `worker`."""
        self._target = worker.target_worker.model_runner.attn_backend
        self._draft = worker.draft_worker.draft_attn_backend
        self._extend = worker.draft_worker.draft_extend_attn_backend
        self._drafts, self._scored = worker.draft_worker.draft_runner, scored_tokens(worker)

    @abstractmethod
    def draft(self, step: int, batch: Any) -> Any:
        """For forward `step` of the draft; the first one prepares them all."""

    @abstractmethod
    def target(self, batch: Any, width: int) -> Any:
        """For `width` nodes of each request."""

    @abstractmethod
    def extend(self, batch: Any, seq_lens: Tensor, width: int) -> Any:
        """For `width` tokens of each request behind `seq_lens` i64[b]."""

    @abstractmethod
    def logits_buffer(self, runner: Any, batch: Any, columns: int | None) -> Tensor | None:
        """Where a forward leaves its logits, of so many columns or all; None for memory of its own."""


class Eager(Attention):
    """SGLang's own preparation, made anew for each batch."""

    def draft(self, step: int, batch: Any) -> Any:
        """See `Attention`."""
        if step == 0:
            self._draft.init_forward_metadata(batch)
        return self._draft.attn_backends[step]

    def target(self, batch: Any, width: int) -> Any:
        """See `Attention`."""
        self._target.init_forward_metadata(batch)
        return self._target

    def extend(self, batch: Any, seq_lens: Tensor, width: int) -> Any:
        """See `Attention`."""
        rows = torch.arange(len(seq_lens), dtype=torch.int32, device=seq_lens.device)
        batch.extend_seq_lens = torch.full_like(rows, width)
        batch.extend_prefix_lens = seq_lens.to(torch.int32)
        batch.extend_start_loc = rows * width
        batch.extend_seq_lens_cpu = [width] * len(seq_lens)
        self._extend.init_forward_metadata(batch)
        return self._extend

    def logits_buffer(self, runner: Any, batch: Any, columns: int | None) -> Tensor | None:
        """See `Attention`."""
        return None


class Static(Attention):
    """The Triton backend's, written on the device into memory that stays where it is, so that a graph can hold it.

    The prefix of verify and extend is the same text in the same slots: its list is written once for both.
    """

    def __init__(self, worker: Any) -> None:
        """Use the buffers that `worker`'s own graphs have."""
        super().__init__(worker)
        self._ranges: dict[tuple[int, int], Tensor] = {}
        self._prefix: tuple[Tensor, Tensor] | None = None

    def draft(self, step: int, batch: Any) -> Any:
        """See `Attention`."""
        if step == 0:
            self._draft.init_forward_metadata_out_graph(batch, in_capture=True)
            last = self._draft.attn_backends[-1]
            splits = last.cuda_graph_num_kv_splits[: batch.batch_size * self._draft.topk]
            last.get_num_kv_splits(splits, batch.seq_lens)
        return self._draft.attn_backends[step]

    def target(self, batch: Any, width: int) -> Any:
        """See `Attention`."""
        target, rows = self._target, batch.batch_size
        starts = target.kv_indptr[: rows + 1]
        torch.cumsum(batch.seq_lens, 0, dtype=starts.dtype, out=starts[1:])
        slots = target.cuda_graph_kv_indices
        target.kv_index_translator.pack_read_stream(
            batch.kv_loc_plan,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            indptr=starts,
            out=slots,
        )
        self._prefix = starts, slots
        mask, mask_starts = batch.spec_info.custom_mask, None
        if mask is not None:
            mask, mask_starts = mask.view(torch.uint8), target.mask_indptr[: rows + 1]
            torch.add(self._range(rows, width * width, mask_starts), starts, alpha=width, out=mask_starts)
        target.forward_metadata = self._metadata(target, rows, width, mask, mask_starts)
        return target

    def extend(self, batch: Any, seq_lens: Tensor, width: int) -> Any:
        """See `Attention`."""
        batch.extend_prefix_lens, batch.extend_seq_lens_cpu = seq_lens, [width] * len(seq_lens)
        self._extend.forward_metadata = self._metadata(self._extend, batch.batch_size, width, None, None)
        return self._extend

    def logits_buffer(self, runner: Any, batch: Any, columns: int | None) -> Tensor | None:
        """See `Attention`."""
        info = batch.spec_info
        rows = batch.batch_size * info.num_tokens_for_logprob_per_req
        if rows > runner.graph_shared_output.max_rows:  # a draft of more branches than nodes
            return None
        if columns is None:
            scored = self._scored if runner is self._drafts else None
            columns = runner.model_config.vocab_size if scored is None else len(scored)
        return runner.graph_shared_output.get_logits_buffer(columns, rows=rows)

    def _metadata(
        self, backend: Any, rows: int, width: int, mask: Tensor | None, mask_starts: Tensor | None
    ) -> ForwardMetadata:
        """Of `width` queries for each request behind the prefix."""
        assert self._prefix is not None  # the target runs before extend
        starts, slots = self._prefix
        return ForwardMetadata(
            attn_logits=None,
            attn_lse=None,
            max_extend_len=width,
            num_kv_splits=None,
            kv_indptr=starts,
            kv_indices=slots,
            qo_indptr=self._range(rows, width, backend.qo_indptr),
            custom_mask=mask,
            mask_indptr=mask_starts,
            window_kv_indptr=None,
            window_kv_indices=None,
            window_num_kv_splits=None,
            window_kv_offsets=None,
        )

    def _range(self, rows: int, step: int, like: Tensor) -> Tensor:
        """0, step, ..., rows * step in the dtype of `like`: one tensor for all graphs."""
        if (rows, step) not in self._ranges:
            self._ranges[rows, step] = torch.arange(0, rows + 1, dtype=like.dtype, device=like.device) * step
        return self._ranges[rows, step]
