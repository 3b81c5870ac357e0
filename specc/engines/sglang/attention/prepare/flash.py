"""FlashAttention 3 (`fa3`): chains and trees of MHA, chains of MLA, pages of any size.

A tree's forwards read in two parts, whose results SGLang's backend merges: the text, which all nodes of a request see,
and behind it what each sees of the tree: the draft's branches their own pages, the target's nodes the slots that the
program's mask lists (`mask: slots`). Where requests share rows out, the nodes are those that have one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from sglang.srt.layers.attention import flashattention_backend as fa
from sglang.srt.layers.attention.flashattention_backend import FlashAttentionMetadata
from torch import Tensor

from ...windows import first_pool
from ..backend import StepAttention
from ..roles import Roles
from ..step_tables import Tables
from ..windowed.second_pool import TwoPools

WHOLE = -1, -1
"""The window of a layer that sees the whole text."""


class Flash(StepAttention):
    """FlashAttention over one table of pages for all forwards of a step."""

    def __init__(self, roles: Roles, tables: Tables) -> None:
        """See `StepAttention`."""
        super().__init__(roles, tables)
        self._schedules: dict[int, tuple[Tensor, Tensor]] = {}
        self._scheduling = False

    def begin(self, batch: Any) -> None:
        """See `StepAttention`."""
        self._schedules.clear()

    def draft(self, step: int, batch: Any) -> Any:
        """See `StepAttention`."""
        tables, rows = self._tables, batch.batch_size
        topk, backend = tables.sizes.topk, self._roles.draft[step]
        if topk == 1:
            return self._set(backend, self._text(rows, 1, tables.drafting(step, rows)), None, step)
        branches = FlashAttentionMetadata(
            cache_seqlens_int32=tables.branch_lens(step, rows),
            cu_seqlens_q=tables.starts(rows * topk, 1),
            cu_seqlens_k=tables.starts(rows * topk, 1),
            page_table=tables.branches(step, rows),
        )
        return self._set(backend, self._text(rows, topk, tables.whole(rows)), branches)

    def block(self, batch: Any, width: int) -> Any:
        """See `StepAttention`."""
        rows = batch.batch_size
        return self._set(self._roles.block, self._text(rows, width, self._tables.extending(rows)), None)

    def target(self, batch: Any, width: int, mask: Tensor | None, counts: Tensor | None) -> Any:
        """See `StepAttention`."""
        tables, rows, backend = self._tables, batch.batch_size, self._roles.verify
        text, listed = self._text(rows, width, tables.verifying(rows)), None
        if mask is not None and counts is not None:
            listed = mask.view(rows * width, width), counts.view(-1)
        return self._verify(backend, text, listed)

    def packed(
        self, batch: Any, width: int, lens: Tensor, starts: Tensor, mask: Tensor | None, counts: Tensor | None
    ) -> Any:
        """See `StepAttention`."""
        tables, backend = self._tables, self._roles.verify
        ends, bounds = self._packed.fill(batch, lens, starts)
        listed = None
        if mask is not None and counts is not None:
            ends = tables.verifying(batch.batch_size)
            listed = self._packed.seen(lens, starts, mask, counts, len(batch.input_ids))
        return self._verify(backend, self._text(batch.batch_size, width, ends, bounds), listed)

    def extend(self, batch: Any, seq_lens: Tensor, width: int) -> Any:
        """See `StepAttention`."""
        batch.extend_prefix_lens, batch.extend_seq_lens_cpu = seq_lens, [width] * len(seq_lens)
        rows = batch.batch_size
        return self._set(self._roles.extend, self._text(rows, width, self._tables.extending(rows)), None)

    def _verify(self, backend: Any, text: FlashAttentionMetadata, listed: tuple[Tensor, Tensor] | None) -> Any:
        """The target's backend over the text, and behind it over the slots i32[r, N] that nodes list, of which i32[r].

        Each node is a sequence of its own there.
        """
        nodes = None
        if listed is not None:
            slots, counts = listed
            each = self._tables.starts(len(counts), 1)
            nodes = FlashAttentionMetadata(
                cache_seqlens_int32=counts, cu_seqlens_q=each, cu_seqlens_k=each, page_table=slots
            )
            self._schedule(backend, nodes, 1, causal=False)
        self._schedule(backend, text, self._tables.sizes.page, causal=nodes is None)
        return self._set(backend, text, nodes)

    def _text(self, rows: int, width: int, lengths: Tensor, bounds: Tensor | None = None) -> FlashAttentionMetadata:
        """Metadata of `width` queries of each request over its table, up to i32[rows] lengths.

        With `bounds` i32[rows + 1] of at most so many, which lie between these.
        """
        tables = self._tables
        bounds = tables.starts(rows, width) if bounds is None else bounds
        return FlashAttentionMetadata(
            cache_seqlens_int32=lengths,
            max_seq_len_q=width,
            max_seq_len_k=tables.sizes.context,
            cu_seqlens_q=bounds,
            cu_seqlens_k=bounds,  # of new keys alone, and there are none
            page_table=tables.pages(rows),
        )

    def _set(
        self, backend: Any, text: FlashAttentionMetadata, tree: FlashAttentionMetadata | None, step: int | None = None
    ) -> Any:
        """The backend with its metadata, and what layers with a pool of their own read; `step` is that of a draft."""
        tables, rows = self._tables, len(text.cache_seqlens_int32)
        if isinstance(tables, TwoPools) and backend.use_sliding_window_kv_pool:
            written = tables.second_written(rows) if step is None else tables.second_drafting(step, rows)
            text.swa_page_table, text.swa_out_cache_loc = tables.second_pages(rows), written
        backend.forward_metadata, backend.forward_metadata_spec_decode_expand = text, tree
        return backend

    def _schedule(self, backend: Any, metadata: FlashAttentionMetadata, page: int, *, causal: bool) -> None:
        """Have the target's layers share one schedule, where each would make its own, which is a launch in every layer.

        That of MLA is left to the layers, as SGLang leaves it, and that of keys and values of several widths (MiMo-V2).
        """
        if not self._scheduling or backend.use_mla or backend._get_scheduler_metadata is None:
            return
        pool = first_pool(backend.token_to_kv_pool)
        if pool.k_buffer[0].shape[-1] != pool.v_buffer[0].shape[-1]:
            return
        table = metadata.page_table
        schedule = backend._get_scheduler_metadata(
            batch_size=table.shape[0],
            max_seqlen_q=metadata.max_seq_len_q,
            max_seqlen_k=table.shape[1] * page,
            num_heads=backend.num_attention_heads,
            num_heads_k=backend.num_kv_heads,
            headdim=backend.head_dim,
            cache_seqlens=metadata.cache_seqlens_int32,
            qkv_dtype=backend.kv_cache_dtype,
            cu_seqlens_q=metadata.cu_seqlens_q,
            page_size=page,
            causal=causal,
            has_softcap=backend.has_softcap,
            num_splits=backend.num_splits,
        )
        self._schedules[id(table)] = table, schedule  # while the table is held, no other has its id

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Hand the schedules to the layers, whose calls have no place for one but in a draft's step."""
        attend, self._scheduling = fa.flash_attn_with_kvcache, True

        def attend_scheduled(*args: Any, **given: Any) -> Any:
            _, schedule = self._schedules.get(id(given.get("page_table")), (None, None))
            if tuple(given.get("window_size", WHOLE)) != WHOLE:  # layers that see less share their work out otherwise
                schedule = None
            return attend(*args, **given if schedule is None else given | {"scheduler_metadata": schedule})

        fa.flash_attn_with_kvcache = attend_scheduled
        try:
            yield
        finally:
            fa.flash_attn_with_kvcache, self._scheduling = attend, False
            self._schedules.clear()
