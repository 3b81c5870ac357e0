"""Paged attention as one more attention implementation of transformers, under the name "specc_paged".

Model code from transformers runs as it is: its attention layers call the function registered here, which
writes the new keys and values to a paged pool and attends to what the request table points at. What a
forward needs for that travels as the keyword argument `paged` of the model's forward, which transformers
hands down to the attention function. No mask function is registered under the name, and for such names
transformers builds no mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from specc.engine.errors import UnsupportedModelError
from specc.engine.kv_pool import KVPool

NAME = "specc_paged"


class PagedContext:
    """Where the tokens of one forward go, and what they may attend to.

    Holds no tensor that depends on data read back from the device, so a forward can be captured: the
    number of keys, `width`, is given by the caller.
    """

    def __init__(
        self, pool: KVPool, req_to_token: Tensor, rows: Tensor, positions: Tensor, slots: Tensor, width: int
    ) -> None:
        """Describe a forward of [b, n] tokens.

        req_to_token i32[P, C]; rows i64[b] pool row of every batch row; positions and slots i64[b, n] of
        every token, no slots where nothing is written; width: how many positions are looked at, above every
        position that counts.
        """
        self.pool = pool
        self.positions = positions
        self.write_slots = slots.reshape(-1)
        self.read_slots = req_to_token[rows, :width].long()
        self.key_positions = torch.arange(width, device=positions.device).expand(len(rows), -1)
        self._masks: dict[int | None, Tensor] = {}

    def visible(self) -> Tensor:
        """Which keys each token attends to, bool[b, n, width], if no window slides: its own and those before it."""
        return self.key_positions[:, None] <= self.positions[..., None]

    def mask(self, window: int | None) -> Tensor:
        """Which keys each token attends to, bool[b, 1, n, width].

        With a sliding `window`, only those at the last `window` positions, its own included.
        """
        if window not in self._masks:
            mask = self.visible()
            if window is not None:
                mask = mask & (self.key_positions[:, None] > self.positions[..., None] - window)
            self._masks[window] = mask[:, None]
        return self._masks[window]


class BlockContext(PagedContext):
    """A block of tokens at positions one after the other: each sees the whole block, and the text before it."""

    def visible(self) -> Tensor:
        """Which keys each token attends to, bool[b, n, width]: those up to the block's last position."""
        seen = self.key_positions[:, None] <= self.positions[:, -1:, None]
        return seen.expand(-1, self.positions.shape[1], -1)


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged: PagedContext | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attention of one layer over the paged pool, called by transformers' AttentionInterface.

    query T[b, heads, n, d]; key and value T[b, kv_heads, n, d], those of the tokens of this forward. Returns
    T[b, n, heads, d]. Raises UnsupportedModelError for attention that is not causal, has sinks or biases, or
    keeps K and V of another shape than the pool.
    """
    if paged is None:
        raise UnsupportedModelError("the model does not hand the argument `paged` down to its attention")
    _refuse(module, kwargs)
    layer = _store(module, paged, key, value)
    return attend(paged, layer, query, scaling=scaling, sliding_window=sliding_window, softcap=softcap), None


def attend(
    paged: PagedContext,
    layer: int,
    query: Tensor,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of query T[b, heads, n, d] over what the pool has of a layer: T[b, n, heads, d]."""
    keys, values = (kept.transpose(1, 2) for kept in paged.pool.read(layer, paged.read_slots))
    groups = query.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (keys, values))
    mask = paged.mask(sliding_window)
    if softcap is None:
        out = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)
    else:
        out = _soft_capped(query, keys, values, mask, scaling, softcap)
    return out.transpose(1, 2).contiguous()


def _refuse(module: nn.Module, kwargs: dict[str, object]) -> None:
    """Raise UnsupportedModelError for what would silently change the result."""
    for name in ("s_aux", "position_bias", "head_mask"):
        if kwargs.get(name) is not None:
            raise UnsupportedModelError(f"paged attention does not implement `{name}`")
    if not getattr(module, "is_causal", True) or kwargs.get("is_causal") is False:
        raise UnsupportedModelError("paged attention is causal, and a layer of this model is not")


def _store(module: nn.Module, paged: PagedContext, key: Tensor, value: Tensor) -> int:
    """Write key and value T[b, kv_heads, n, d] of this forward to their slots; returns the layer's number."""
    shape = paged.pool.shape
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int) or not 0 <= layer < shape.layers:
        raise UnsupportedModelError(f"the KV pool has {shape.layers} layers, the model has layer {layer}")
    expected = (shape.kv_heads, shape.head_dim)
    for name, x in (("keys", key), ("values", value)):
        if (x.shape[1], x.shape[3]) != expected:
            found = (x.shape[1], x.shape[3])
            raise UnsupportedModelError(f"layer {layer} has {name} of {found} per token, the KV pool {expected}")
    key, value = (x.transpose(1, 2).reshape(-1, *expected) for x in (key, value))
    paged.pool.write(layer, paged.write_slots, key, value)
    return layer


def _soft_capped(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float | None, softcap: float
) -> Tensor:
    """Attention whose scores go through softcap * tanh(score / softcap), as in Gemma 2 (arXiv 2408.00118)."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = softcap * torch.tanh(query @ keys.transpose(2, 3) * scale / softcap)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1, dtype=torch.float32)
    return weights.to(query.dtype) @ values


@contextmanager
def plain_attention(model: PreTrainedModel, name: str | None = None) -> Iterator[None]:
    """Run the model with one of transformers' own attention implementations, by default its usual one."""
    before = model.config._attn_implementation or "eager"
    model.set_attn_implementation(name or ("sdpa" if model._supports_sdpa else "eager"))
    try:
        yield
    finally:
        model.set_attn_implementation(before)


AttentionInterface.register(NAME, paged_attention)
