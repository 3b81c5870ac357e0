"""SGLang's Triton attention (`triton`), written on the device into memory that stays where it is.

The prefix of verify and extend is the same text in the same slots: its list is written once for both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from sglang.srt.layers.attention.triton_backend import ForwardMetadata
from torch import Tensor

from ..backend import StepAttention
from ..roles import TWO_POOLS, Roles
from ..step_tables import Tables
from ..windowed.window_lists import WindowLists, Windows


class Triton(StepAttention):
    """Triton attention over the buffers that SGLang's own graphs have."""

    _prefix: tuple[Tensor, Tensor] | None = None

    def __init__(self, roles: Roles, tables: Tables) -> None:
        """See `StepAttention`."""
        super().__init__(roles, tables)
        window = roles.verify.sliding_window_size or 0
        self._windows = WindowLists(tables, window) if window > 0 else None

    def begin(self, batch: Any) -> None:
        """See `StepAttention`."""
        self._prefix = None

    def draft(self, step: int, batch: Any) -> Any:
        """See `StepAttention`."""
        container = self._roles.container
        if step == 0:
            container.init_forward_metadata_out_graph(batch, in_capture=True)
            last = container.attn_backends[-1]
            splits = last.cuda_graph_num_kv_splits[: batch.batch_size * container.topk]
            last.get_num_kv_splits(splits, batch.seq_lens)
        return self._roles.draft[step]

    def target(self, batch: Any, width: int, mask: Tensor | None, counts: Tensor | None) -> Any:
        """See `StepAttention`."""
        backend, rows = self._roles.verify, batch.batch_size
        starts, slots = self._text(backend, batch, batch.seq_lens)
        mask_starts = None
        if mask is not None:
            mask, mask_starts = mask.view(torch.uint8), backend.mask_indptr[: rows + 1]
            squares = self._tables.starts(rows, width * width, torch.int64)
            torch.add(squares, starts, alpha=width, out=mask_starts)
        seen = None if self._windows is None else self._windows.fill(batch)
        backend.forward_metadata = self._metadata(starts, slots, width, mask, mask_starts, seen)
        return backend

    def packed(
        self, batch: Any, width: int, lens: Tensor, starts: Tensor, mask: Tensor | None, counts: Tensor | None
    ) -> Any:
        """See `StepAttention`."""
        backend, (_, bounds) = self._roles.verify, self._packed.fill(batch, lens, starts)
        seen = None if self._windows is None else self._windows.fill(batch)
        metadata = self._metadata(*self._text(backend, batch, batch.seq_lens), width, None, None, seen)
        backend.forward_metadata = replace(metadata, qo_indptr=bounds)
        return backend

    def extend(self, batch: Any, seq_lens: Tensor, width: int) -> Any:
        """See `StepAttention`."""
        batch.extend_prefix_lens, batch.extend_seq_lens_cpu = seq_lens, [width] * len(seq_lens)
        backend = self._roles.extend
        starts, slots = self._text(backend, batch, seq_lens)
        backend.forward_metadata = self._metadata(starts, slots, width, None, None)
        return backend

    def _text(self, backend: Any, batch: Any, seq_lens: Tensor) -> tuple[Tensor, Tensor]:
        """Where the slots of each request's text begin, i32[b + 1], and the slots, in the buffers of `backend`."""
        if self._prefix is None:
            starts = backend.kv_indptr[: batch.batch_size + 1]
            torch.cumsum(seq_lens, 0, dtype=starts.dtype, out=starts[1:])
            slots = backend.cuda_graph_kv_indices
            backend.kv_index_translator.pack_read_stream(
                batch.kv_loc_plan,
                req_pool_indices=batch.req_pool_indices,
                seq_lens=seq_lens,
                indptr=starts,
                out=slots,
            )
            self._prefix = starts, slots
        return self._prefix

    def _metadata(
        self,
        starts: Tensor,
        slots: Tensor,
        width: int,
        mask: Tensor | None,
        mask_starts: Tensor | None,
        seen: Windows | None = None,
    ) -> ForwardMetadata:
        """Of `width` queries for each request behind its text; layers with a window read `seen`."""
        second = seen is not None and getattr(self._roles.verify, TWO_POOLS)
        return ForwardMetadata(
            attn_logits=None,
            attn_lse=None,
            max_extend_len=width,
            num_kv_splits=None,
            kv_indptr=starts,
            kv_indices=slots,
            qo_indptr=self._tables.starts(len(starts) - 1, width),
            custom_mask=mask,
            mask_indptr=mask_starts,
            window_kv_indptr=None if seen is None else seen.starts,
            window_kv_indices=None if seen is None else seen.listed,
            window_num_kv_splits=None,
            window_kv_offsets=None if seen is None else seen.firsts,
            swa_out_cache_loc=seen.written if seen is not None and second else None,
        )
