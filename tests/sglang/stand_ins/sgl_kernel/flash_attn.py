"""FlashAttention 3 over paged and packed keys and values, in plain torch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .attention import attend

WHOLE = (-1, -1)
"""A window that hides nothing."""
Found = Tensor | tuple[Tensor, Tensor]
"""The result [n, H, E]; where it is asked for, with the logarithms f32[H, n] of what scores add up to."""


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: None = None,
    v: None = None,
    qv: Tensor | None = None,
    rotary_cos: None = None,
    rotary_sin: None = None,
    cache_seqlens: Tensor | None = None,
    cache_batch_idx: None = None,
    cache_leftpad: None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: None = None,
    q_descale: None = None,
    k_descale: None = None,
    v_descale: None = None,
    softmax_scale: float = 1.0,
    causal: bool = False,
    window_size: tuple[int, int] = WHOLE,
    attention_chunk: int | None = None,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    only_qv: bool = False,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
    out: None = None,
) -> Found:
    """Attend from the packed queries q [n, H, D] of b requests to the pages that their tables name.

    `k_cache` [pages, p, H_kv, D], `v_cache` [pages, p, H_kv, E]; `page_table` i32[b, M], of which `cache_seqlens`
    i32[b] tokens are read; with `qv` [n, H, E] scores are those of q and k and those of qv and v together. A schedule
    must be one that `get_scheduler_metadata` makes for this call. `out` is memory that may be used, and is not.
    """
    given = (k, v, rotary_cos, cache_batch_idx, cache_leftpad, q_descale, k_descale, v_descale)
    refuse(any(argument is not None for argument in given) or only_qv, attention_chunk)
    if scheduler_metadata is not None and tuple(window_size) != WHOLE:
        raise ValueError("a schedule for the whole text in a call for a window of it")
    if cache_seqlens is None or page_table is None or cu_seqlens_q is None:
        raise NotImplementedError("keys and values that are not in pages, or queries that are not packed")
    for table in (page_table, cache_seqlens, cu_seqlens_q):
        if table.dtype is not torch.int32 or table.stride(-1) != 1:
            raise TypeError(f"a table of {table.dtype} with strides {table.stride()}, where rows of i32 are read")
    if scheduler_metadata is not None:
        heads, heads_k = q.shape[1], k_cache.shape[2]
        expected = schedule(len(page_table), max_seqlen_q, heads, heads_k, k_cache.shape[1], causal, cache_seqlens)
        if not torch.equal(scheduler_metadata, expected):
            raise ValueError(f"a schedule for {scheduler_metadata.tolist()} in a call for {expected.tolist()}")
    page = k_cache.shape[1]
    keys = []
    for row, length in zip(page_table.long(), cache_seqlens.tolist(), strict=True):
        pages = row[: -(-length // page)]
        keys.append([pool[pages].flatten(0, 1)[:length] for pool in (k_cache, v_cache)])
    seen = causal, window_size
    return packed(q, qv, keys, cu_seqlens_q, max_seqlen_q, softmax_scale, softcap, seen, return_softmax_lse, sinks)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    softmax_scale: float = 1.0,
    causal: bool = False,
    window_size: tuple[int, int] = WHOLE,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
    out: None = None,
    **given: Any,
) -> Found:
    """The same over packed keys [m, H_kv, D] and values [m, H_kv, E] of b requests."""
    ignored = {"num_splits", "pack_gqa", "sm_margin"}
    named = {name for name, value in given.items() if value is not None and value is not False}
    refuse(bool(named - ignored), attention_chunk)
    keys = [[pool[first:last] for pool in (k, v)] for first, last in pairwise(cu_seqlens_k.tolist())]
    seen = causal, window_size
    return packed(q, None, keys, cu_seqlens_q, max_seqlen_q, softmax_scale, softcap, seen, return_softmax_lse, sinks)


def packed(
    q: Tensor,
    qv: Tensor | None,
    keys: list[list[Tensor]],
    starts: Tensor,
    longest: int | None,
    scale: float,
    softcap: float,
    seen: tuple[bool, tuple[int, int]],
    return_lse: bool,
    sinks: Tensor | None,
) -> Found:
    """Attend from each request's queries to its keys and values; a causal request's last query sees all of them.

    `seen`: whether it is causal, and how many tokens further left and right a query sees at most. `sinks` [H] are
    `attend`'s.
    """
    causal, (left, right) = seen
    result = q.new_full((*q.shape[:2], keys[0][1].shape[-1]), torch.nan)
    sums = torch.full(q.shape[1::-1], torch.nan)
    for (key, value), (first, last) in zip(keys, pairwise(starts.tolist()), strict=True):
        if longest is not None and last - first > longest:
            raise ValueError(f"{last - first} queries, and max_seqlen_q is {longest}")
        visible, before = torch.ones(last - first, len(key), dtype=torch.bool), len(key) - (last - first)
        if causal:
            visible = visible.tril(before)
        if right != -1:
            visible = visible.tril(before + right)
        if left != -1:
            visible = visible.triu(before - left)
        query = q[first:last]
        if qv is not None:
            query, key = torch.cat((query, qv[first:last]), -1), torch.cat((key, value), -1)
        attended, lse = attend(query, key, value, visible, scale, softcap, sinks)
        result[first:last], sums[:, first:last] = attended, lse.T
    return (result, sums) if return_lse else result


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads: int,
    num_heads_k: int,
    headdim: int,
    cache_seqlens: Tensor,
    page_size: int | None = None,
    causal: bool = False,
    **given: Any,
) -> Tensor:
    """What of a call a schedule depends on, in the place of a schedule."""
    return schedule(batch_size, max_seqlen_q, num_heads, num_heads_k, page_size, causal, cache_seqlens)


def schedule(
    rows: int, width: int | None, heads: int, heads_k: int, page: int | None, causal: bool, lengths: Tensor
) -> Tensor:
    """The parameters as i32[6 + rows]."""
    return torch.tensor([rows, width, heads, heads_k, page, causal, *lengths.tolist()], dtype=torch.int32)


def merge_state_v2(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    """Two parts of an attention as one: results [n, H, E] by logarithms f32[n, H] of what their scores add up to."""
    sums = torch.logaddexp(s_a, s_b)
    parts = ((v_a, s_a), (v_b, s_b))
    return sum(value * (part - sums).exp()[..., None] for value, part in parts).to(v_a.dtype), sums


def refuse(given: bool, chunk: int | None) -> None:
    """Refuse what no model of the tests needs."""
    if given or chunk:
        raise NotImplementedError("new keys, rotary embeddings, scales and chunks")
