"""What a forward of a model reads and multiplies, counted from its config.json: an estimate, for no two are alike.

Layers are taken for those of a decoder with attention and a gated feed-forward network, or experts. Norms, biases,
scales of quantised weights and the one row of the embedding that a token reads are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from specc.compiler.config.models.pair import Described
from specc.compiler.config.resolved import KV_BYTES

BITS: Mapping[str, int] = {
    "awq": 4, "gptq": 4, "bitsandbytes": 4, "mxfp4": 4, "nvfp4": 4, "fp8": 8, "fbgemm_fp8": 8, "modelopt": 8,
}  # fmt: skip
"""Bits of a weight by what a model calls its quantisation; of another it is taken for not quantised."""

_INNER = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
_OF_EXPERT = ("moe_intermediate_size", "expert_intermediate_size")
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_SHARED = ("n_shared_experts", "num_shared_experts")


class UnknownSizeError(Exception):
    """A model's config.json lacks a size that an estimate needs; the message names it."""


@dataclass(frozen=True)
class Weights:
    """The weights of a model, in elements, and what its forward touches besides.

    Attributes:
        dense: weights that every row is multiplied with, without the head.
        head: weights of the head, which scores tokens.
        expert: weights of one expert in all layers that have experts.
        experts: experts of such a layer, 0 of a model without any.
        active: of these, how many a row is multiplied with.
        bytes: of a weight.
        layers: how many there are.
        attended: elements of the queries of one token in all layers: what each key and value of a text is multiplied
            with.
        kv_bytes: keys and values of one token in all layers, in bytes.

    """

    dense: int
    head: int
    expert: int
    experts: int
    active: int
    bytes: float
    layers: int
    attended: int
    kv_bytes: int

    def read(self, rows: int, scored: int) -> float:
        """Return the bytes of weights that so many rows read, of which so many are scored; routing is at random."""
        touched = self.experts * (1 - (1 - self.active / self.experts) ** rows) if self.experts else 0
        return self.bytes * (self.dense + touched * self.expert + self.head * bool(scored))

    def multiplied(self, rows: int, scored: int) -> float:
        """Return the floating-point operations of so many rows, of which so many are scored; attention left out."""
        return 2.0 * (rows * (self.dense + self.active * self.expert) + scored * self.head)


def weights_of(model: Described, *, module: bool = False, reads: int = 0, inside: Described | None = None) -> Weights:
    """Return the weights of a model.

    Args:
        model: its directory.
        module: whether one module of multi-token prediction is meant, which is one layer.
        reads: elements of a row of the target's that it reads beside its own; a layer joins them to its own width.
        inside: the model whose head it shares where it says no vocabulary of its own.

    Raises:
        UnknownSizeError: its config.json lacks a size.

    """
    keys, hidden = _language_part(model.content), _size(model, "hidden_size")
    layers = 1 if module else model.number("num_hidden_layers") or _size(model, "num_layers")
    vocabulary = model.number("draft_vocab_size") or model.number("vocab_size")
    if vocabulary is None:
        vocabulary = _size(inside if inside is not None else model, "vocab_size")
    expert, experts, active, shared = _experts(keys, hidden)
    usual = 3 * hidden * (_number(keys, *_INNER) or 4 * hidden)
    first = 0 if module else _number(keys, "first_k_dense_replace") or 0  # a module stands behind the last layer
    plain = min(layers, first) if experts else layers
    attention, queries = _attention(model, keys, hidden)
    dtype = model.said.facts.get("dtype")
    of_dtype = KV_BYTES[str(dtype.value)] if dtype is not None else 2
    quantised = model.said.facts.get("quant_method")
    bits = BITS.get(str(quantised.value), 8 * of_dtype) if quantised is not None else 8 * of_dtype
    kept = model.said.facts.get("kv_dtype")
    row_bytes = (
        _size(model, "num_kv_heads") * _size(model, "head_dim") * KV_BYTES.get(str(kept.value) if kept else "", 2)
    )
    return Weights(
        dense=layers * attention + plain * usual + (layers - plain) * shared + reads * hidden,
        head=hidden * vocabulary,
        expert=(layers - plain) * expert,
        experts=experts,
        active=active,
        bytes=bits / 8,
        layers=layers,
        attended=layers * queries,
        kv_bytes=row_bytes * (1 if _latent(model) else 2) * (1 if module else _size(model, "num_layers")),
    )


def _experts(keys: Mapping[str, Any], hidden: int) -> tuple[int, int, int, int]:
    """Return the weights of an expert, how many there are, how many a row takes, and the weights that all rows take."""
    experts = _number(keys, *_EXPERTS) or 0
    if experts < 2:
        return 0, 0, 0, 0
    inner = _number(keys, *_OF_EXPERT) or _number(keys, *_INNER) or 4 * hidden
    active = min(experts, _number(keys, "num_experts_per_tok", "num_experts_per_token", "moe_topk") or 2)
    always = _number(keys, "shared_expert_intermediate_size") or inner * (_number(keys, *_SHARED) or 0)
    return 3 * hidden * inner, experts, active, 3 * hidden * always + hidden * experts


def _attention(model: Described, keys: Mapping[str, Any], hidden: int) -> tuple[int, int]:
    """Return the weights of a layer's attention, and the elements of a token's queries there."""
    head_dim, heads = _size(model, "head_dim"), _number(keys, "num_attention_heads", "n_head")
    if not _latent(model):
        queries = (heads or _size(model, "num_kv_heads")) * head_dim
        return 2 * hidden * (queries + _size(model, "num_kv_heads") * head_dim), queries
    heads, latent = heads or 1, _number(keys, "kv_lora_rank") or head_dim
    plain, rotary = _number(keys, "qk_nope_head_dim") or 128, _number(keys, "qk_rope_head_dim") or 64
    values, low = _number(keys, "v_head_dim") or plain, _number(keys, "q_lora_rank")
    wide = heads * (plain + rotary)
    asking = low * (hidden + wide) if low else hidden * wide
    return asking + hidden * head_dim + heads * latent * (plain + values) + heads * values * hidden, heads * head_dim


def _latent(model: Described) -> bool:
    layout = model.said.facts.get("kv_layout")
    return layout is not None and layout.value == "mla"


def _size(model: Described, key: str) -> int:
    """Return a size that its directory settles. UnknownSizeError where it does not."""
    size = model.number(key)
    if size is None or size < 1:
        raise UnknownSizeError(f"'{model.written}/config.json' does not say its {key}")
    return size


def _number(keys: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these keys that is a positive integer; None without one."""
    return next((keys[name] for name in names if type(keys.get(name)) is int and keys[name] > 0), None)


def _language_part(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of the language model, which a model of several kinds of input has in a block of their own."""
    blocks = (content.get(name) for name in ("text_config", "llm_config", "language_config"))
    return next((cast("Mapping[str, Any]", block) for block in blocks if isinstance(block, dict)), content)
