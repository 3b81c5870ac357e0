"""flashinfer (`flashinfer`): chains, trees and blocks of MHA, over pages of one token, whatever the allocator's are.

How a forward's keys are shared out among thread blocks is planned on the host, from lengths that the host has: for all
forwards of a step before it is launched. What a plan holds goes to the device in one copy for each forward. The lists
of slots, and a tree's mask, are written in the step (`slot_lists`).

A chain is causal. SGLang gives its own chains a mask, which says the same. A draft's layers say of a block that it is
not; its forward stands where other drafts have extend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_backend import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
    DecodeMetadata,
    PrefillMetadata,
    fast_decode_plan,
    fast_prefill_plan,
)
from torch import Tensor

from ..backend import StepAttention
from ..roles import Roles
from ..slot_lists import Lists
from ..step_tables import Tables

LAYOUT, PAGE = "NHD", 1


@dataclass(frozen=True)
class FlashinferForward:
    """A forward of a step for one size of batch: its wrapper, and what plans it for keys i32[n] of each list."""

    wrapper: Any
    plan: Callable[[Tensor], None]


@dataclass(frozen=True)
class FlashinferForwards:
    """Those of a step for one size of batch, as far as they run on flashinfer; `extend` may be that over a block."""

    draft: Sequence[FlashinferForward]
    target: FlashinferForward | None
    extend: FlashinferForward | None


class Flashinfer(StepAttention):
    """flashinfer's wrappers, made for each size of batch when it is met first."""

    plans = True

    def __init__(self, roles: Roles, tables: Tables) -> None:
        """See `StepAttention`."""
        super().__init__(roles, tables)
        self._lists = Lists(tables)
        self._named = {role for role, name in roles.named().items() if name == "flashinfer"}
        self._made: dict[int, FlashinferForwards] = {}
        self._memory: dict[str, tuple[Tensor, Tensor]] = {}
        self._planned: int | None = None
        self._copied = torch.cuda.Event() if tables.slots.is_cuda else None

    def plan(self, rows: int, lengths: Sequence[int]) -> None:
        """See `StepAttention`."""
        sizes, text = self._tables.sizes, torch.tensor(lengths, dtype=torch.int32)
        if self._copied is not None:  # the plans before are read from the host's memory until then
            self._copied.synchronize()
        if rows not in self._made:
            self._made[rows] = self._make(rows)
        forwards = self._made[rows]
        branches = text.repeat_interleave(sizes.topk)
        for step, forward in enumerate(forwards.draft):
            forward.plan(branches + step + 1)
        if forwards.target is not None:
            forwards.target.plan(text + sizes.nodes)
        if forwards.extend is not None:
            forwards.extend.plan(text + sizes.steps + 1)
        if self._copied is not None:
            self._copied.record()
        self._planned = rows

    def begin(self, batch: Any) -> None:
        """See `StepAttention`. A step that nobody has planned has padding rows: before or while steps are captured."""
        if self._planned != batch.batch_size and not self._capturing():
            self.plan(batch.batch_size, [0] * batch.batch_size)
        self._lists.fill(batch)

    def draft(self, step: int, batch: Any) -> Any:
        """See `StepAttention`."""
        backend = self._roles.draft[step]
        backend.forward_metadata = DecodeMetadata([self._made[batch.batch_size].draft[step].wrapper])
        return backend

    def block(self, batch: Any, width: int) -> Any:
        """See `StepAttention`."""
        return self._set(self._roles.block, self._made[batch.batch_size].extend)

    def target(self, batch: Any, width: int, mask: Tensor | None, counts: Tensor | None) -> Any:
        """See `StepAttention`."""
        if mask is not None:
            self._lists.pack(batch, mask)
        return self._set(self._roles.verify, self._made[batch.batch_size].target)

    def extend(self, batch: Any, seq_lens: Tensor, width: int) -> Any:
        """See `StepAttention`."""
        batch.extend_prefix_lens, batch.extend_seq_lens_cpu = seq_lens, [width] * len(seq_lens)
        return self._set(self._roles.extend, self._made[batch.batch_size].extend)

    def _capturing(self) -> bool:
        return self._copied is not None and torch.cuda.is_current_stream_capturing()

    def _set(self, backend: Any, forward: FlashinferForward | None) -> Any:
        assert forward is not None, "the role is this backend's"
        backend.forward_metadata = PrefillMetadata([forward.wrapper], use_ragged=False, extend_no_prefix=False)
        return backend

    def _make(self, rows: int) -> FlashinferForwards:
        lists, sizes, roles = self._lists, self._tables.sizes, self._roles
        draft = [self._decode(step, rows) for step in range(len(roles.draft))] if "draft" in self._named else []
        target = extend = None
        if "verify" in self._named:
            tree = sizes.topk > 1
            masks = {"custom_mask_buf": lists.masks, "mask_indptr_buf": lists.mask_starts(rows)} if tree else {}
            target = self._prefill("verify", roles.verify, rows, sizes.nodes, lists.verifying(rows), masks)
        over = roles.extend if "extend" in self._named else roles.block if "draft" in self._named else None
        if over is not None:
            extend = self._prefill("extend", over, rows, sizes.steps + 1, lists.extending(rows), {})
        return FlashinferForwards(draft, target, extend)

    def _decode(self, step: int, rows: int) -> FlashinferForward:
        """One query of each branch. The first plan loads the kernels; later ones reuse what it has found."""
        backend = self._roles.draft[step]
        of, (starts, lasts) = backend.indices_updater_decode, self._lists.drafting(step, rows)
        wrapper = BatchDecodeWithPagedKVCacheWrapper(
            backend.workspace_buffer,
            LAYOUT,
            backend=backend.decode_backend,
            use_cuda_graph=True,
            use_tensor_cores=backend.decode_use_tensor_cores,
            paged_kv_indptr_buffer=starts,
            paged_kv_indices_buffer=self._lists.slots,
            paged_kv_last_page_len_buffer=lasts,
        )
        self._share(f"draft {step}", wrapper)
        given = (starts, self._lists.slots[:0], lasts, of.num_qo_heads, of.num_kv_heads, of.head_dim, PAGE)
        kinds: dict[str, Any] = {"data_type": of.data_type, "q_data_type": of.q_data_type}
        kinds["disable_split_kv"] = backend.disable_cuda_graph_kv_split
        wrapper.plan(*given, **kinds)

        def plan(keys: Tensor) -> None:
            fast_decode_plan(wrapper, *given, **kinds, global_override_indptr_cpu=_sums(keys))

        return FlashinferForward(wrapper, plan)

    def _prefill(
        self,
        role: str,
        backend: Any,
        rows: int,
        width: int,
        lists: tuple[Tensor, Tensor],
        masks: dict[str, Tensor],
    ) -> FlashinferForward:
        """`width` queries of each request, which are its last keys, behind all others or as `masks` say."""
        of, (starts, lasts), queries = backend.indices_updater_prefill, lists, self._tables.starts(rows, width)
        wrapper = BatchPrefillWithPagedKVCacheWrapper(
            backend.workspace_buffer,
            LAYOUT,
            backend=backend.prefill_backend,
            use_cuda_graph=True,
            qo_indptr_buf=queries,
            paged_kv_indptr_buf=starts,
            paged_kv_indices_buf=self._lists.slots,
            paged_kv_last_page_len_buf=lasts,
            **masks,
        )
        self._share(role, wrapper)
        given = (queries, starts, self._lists.slots[:0], lasts, of.num_qo_heads, of.num_kv_heads, of.head_dim, PAGE)
        kinds: dict[str, Any] = {"q_data_type": of.q_data_type, "kv_data_type": of.data_type}
        wrapper.plan(*given, **kinds)
        on_host = torch.arange(rows + 1, dtype=torch.int32) * width

        def plan(keys: Tensor) -> None:
            fast_prefill_plan(
                wrapper,
                *given,
                **kinds,
                qo_indptr_host=on_host,
                kv_indptr_host=_sums(keys),
                kv_lens_host=keys,
                max_q_len=width,
                max_kv_len=int(keys.max()),
            )

        return FlashinferForward(wrapper, plan)

    def _share(self, forward: str, wrapper: Any) -> None:
        """Let a forward have one memory for its plan, 8 MiB on the device and the host, whatever the size of batch."""
        own = wrapper._int_workspace_buffer, wrapper._pin_memory_int_workspace_buffer
        kept = self._memory.setdefault(forward, own)
        wrapper._int_workspace_buffer, wrapper._pin_memory_int_workspace_buffer = kept


def _sums(keys: Tensor) -> Tensor:
    """0, then the prefix sums of keys i32[n]: i32[n + 1]."""
    sums = torch.zeros(len(keys) + 1, dtype=torch.int32)
    torch.cumsum(keys, 0, dtype=torch.int32, out=sums[1:])
    return sums
