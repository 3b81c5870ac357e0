"""Attention and masks over paged memory, as implementations of transformers.

A model keeps its own attention code. Where it goes through transformers' interface and may use torch's attention, it
gets that (`PAGED`), else what it calls eager (`PAGED_EAGER`); both read what the forward's `PagedContext` gives back.
Masks are made by a model's own mask functions, asked about the positions of tokens and keys.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface

from specc.lab.engine.memory.context import MaskFunction, PagedContext, running

CHANGE_SCORES = ("position_bias", "softcap")
"""What a model may hand its attention besides keys and values; without it, attention is torch's alone."""
PAGED, PAGED_EAGER = "specc_paged", "specc_paged_eager"


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of one layer over what the context gave back, called by transformers' AttentionInterface.

    query T[b, heads, n, d]; key and value T[b, kv_heads, width, d]; attention_mask [b, 1, n, width] as `paged_mask`
    makes it, without which a token attends to itself and what is before it, no further back than the window. Returns
    T[b, n, heads, d].
    """
    mask = running().mask(sliding_window) if attention_mask is None else attention_mask
    if query.device.type == "cpu" and all(kwargs.get(name) is None for name in CHANGE_SCORES):
        return _attend(query, key, value, mask, kwargs.get("scaling")), None
    return sdpa_attention_forward(module, query, key, value, mask, **kwargs)


def paged_eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """As `paged_attention`, by the model's own eager attention, whose mask is added to the scores."""
    mask = _added(running().mask(sliding_window), query.dtype) if attention_mask is None else attention_mask
    eager = sys.modules[type(module).__module__].eager_attention_forward
    return eager(module, query, key, value, mask, sliding_window=sliding_window, **kwargs)


def paged_mask(*, mask_function: MaskFunction, dtype: torch.dtype, **kwargs: object) -> Tensor:
    """What a model's mask function allows in the running forward, bool[b, 1, n, width].

    It is what is added to scores on a CPU, where every layer would make that of it: dtype[b, 1, n, width].
    """
    mask = running().mask_by(mask_function)
    return _added(mask, dtype) if mask.device.type == "cpu" else mask


def paged_eager_mask(*, mask_function: MaskFunction, dtype: torch.dtype, **kwargs: object) -> Tensor:
    """The same as what is added to scores, dtype[b, 1, n, width]."""
    return _added(running().mask_by(mask_function), dtype)


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where a mask allows, the lowest number elsewhere."""
    return torch.zeros((), dtype=dtype, device=mask.device).where(mask, torch.finfo(dtype).min)


def attend(paged: PagedContext, layer: int, query: Tensor, sliding_window: int | None = None) -> Tensor:
    """Attention of query T[b, heads, n, d] over what the pool has of a layer: T[b, n, heads, d]."""
    keys, values = (kept.transpose(1, 2) for kept in paged.pool.read(layer, paged.read_slots))
    return _attend(query, keys, values, paged.mask(sliding_window))


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """Attention of query T[b, heads, n, d] over grouped heads, which are not repeated in memory: T[b, n, heads, d]."""
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)
    return out.transpose(1, 2).contiguous()


def page(model: PreTrainedModel) -> None:
    """Switch a model's attention to paged memory."""
    _switch(model, PAGED if model._can_set_attn_implementation() and model._supports_sdpa else PAGED_EAGER)


@contextmanager
def plain_attention(model: PreTrainedModel, name: str | None = None) -> Iterator[None]:
    """Run the model with one of transformers' own attention implementations, by default its usual one."""
    before = model.config._attn_implementation or "eager"
    _switch(model, name or ("sdpa" if model._supports_sdpa else "eager"))
    try:
        yield
    finally:
        _switch(model, before)


def _switch(model: PreTrainedModel, name: str) -> None:
    """Choose the language model's attention, or, where that is code of its own, at least how its masks are made."""
    config = model.config
    if model._can_set_attn_implementation():
        text = [key for key in config.sub_configs if getattr(config, key, None) is config.get_text_config()]
        model.set_attn_implementation(dict.fromkeys(["", *text], name))
    else:
        config._attn_implementation = name


AttentionInterface.register(PAGED, paged_attention)
AttentionInterface.register(PAGED_EAGER, paged_eager_attention)
AttentionMaskInterface.register(PAGED, paged_mask)
AttentionMaskInterface.register(PAGED_EAGER, paged_eager_mask)
