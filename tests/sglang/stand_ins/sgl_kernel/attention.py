"""Attention over paged keys and values: registered as `torch.ops.sgl_kernel.*`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("sgl_kernel", "DEF")
LOOKED_UP = ("fused_gdn_gating_cpu", "fused_sigmoid_gating_delta_rule_update_cpu")
"""Operators that SGLang takes when it imports what prepares pictures, in whose place tests put others."""
for name in LOOKED_UP:
    LIBRARY.define(f"{name}() -> ()")


def operator(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function under the name that its schema starts with."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        LIBRARY.define(schema)
        LIBRARY.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")
        return function

    return register


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    scale: float,
    logit_cap: float,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend from query [n, H, D] to key [m, H_kv, D] and value [m, H_kv, E] where visible [n, m] says so.

    The result is [n, H, E], and the logarithm of the sum of the exponentials of the scores, f32[n, H]. A query that
    sees nothing has zeros and -inf. `sinks` [H] are the scores of a token more, whose value is zero.
    """
    repeats = query.shape[1] // key.shape[1]
    key, value = (pool.repeat_interleave(repeats, 1).float() for pool in (key, value))
    scores = torch.einsum("nhd,mhd->hnm", query.float(), key) * scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().view(-1, 1, 1).expand(-1, len(query), 1)), -1)
    weights = torch.softmax(scores, -1)[..., : len(key)].masked_fill(~visible, 0)
    return torch.einsum("hnm,mhd->nhd", weights, value).to(query.dtype), torch.logsumexp(scores, -1).T


def plain_only(cross: bool) -> None:
    """Refuse what no model of the tests needs."""
    if cross:
        raise NotImplementedError("cross attention")


@operator(
    "decode_attention_cpu(Tensor query, Tensor(a!) k_buffer, Tensor(b!) v_buffer, float k_scale, float v_scale, "
    "Tensor(c!) output, Tensor? key, Tensor? value, Tensor loc, Tensor(d!) attn_logits, Tensor req_to_token, "
    "Tensor req_pool_indices, Tensor seq_lens, float sm_scale, float logit_cap, bool is_cross_attn, "
    "int sliding_window, Tensor? encoder_lens, Tensor? sinks) -> ()"
)
def decode_attention_cpu(
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """One query per request, to all of its tokens; new keys and values are stored first."""
    plain_only(is_cross_attn)
    for new, pool in ((key, k_buffer), (value, v_buffer)):
        if new is not None:
            pool[loc] = new.view(-1, *pool.shape[1:]).to(pool.dtype)
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        first = max(length - sliding_window, 0) if sliding_window > 0 else 0
        slots = req_to_token[row, first:length].long()
        everything = torch.ones(1, len(slots), dtype=torch.bool)
        place = slice(i, i + 1)
        keys, values = k_buffer[slots], v_buffer[slots]
        output[place], _ = attend(query[place], keys, values, everything, sm_scale, logit_cap, sinks)


@operator(
    "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(a!) o, Tensor k_buffer, Tensor v_buffer, "
    "float k_scale, float v_scale, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
    "Tensor extend_seq_lens, Tensor extend_start_loc, int max_len, float sm_scale, float logit_cap, "
    "bool is_cross_attn, int sliding_window, Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask, bool is_causal)"
    " -> ()"
)
def extend_attention_cpu(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    o: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Several queries per request, the last of its tokens; among these a tree mask says what sees what.

    Rows that no length is given of are padding, which SGLang adds behind what it prepares.
    """
    plain_only(is_cross_attn)
    mask_at = 0
    of_requests = (req_pool_indices[: len(seq_lens)], seq_lens, extend_seq_lens, extend_start_loc)
    for row, length, new, start in zip(*(column.tolist() for column in of_requests), strict=True):
        slots = req_to_token[row, :length].long()
        visible = torch.ones(new, length, dtype=torch.bool)
        if tree_mask is not None:
            visible[:, length - new :] = tree_mask.reshape(-1)[mask_at : mask_at + new * new].view(new, new).bool()
            mask_at += new * new
        elif is_causal:
            visible = visible.tril(length - new)
        if sliding_window > 0:
            if tree_mask is not None:
                raise NotImplementedError("trees over sliding windows")
            visible = visible.triu(length - new - sliding_window + 1)
        places = slice(start, start + new)
        o[places], _ = attend(q[places], k_buffer[slots], v_buffer[slots], visible, sm_scale, logit_cap, sinks)
