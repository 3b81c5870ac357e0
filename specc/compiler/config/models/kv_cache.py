"""What a token leaves in one layer of the KV pool: heads, their length, the layout, the element type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specc.compiler.config.models.attributes import VARIES, Bare, Fact, attribute, block_of, value_of, words_of

WHOLE = {"whole_num_kv_heads": "num_key_value_heads", "whole_head_dim": "head_dim"}
"""What is said of the layers that see the whole text, and the attribute of a layer that says it."""
_FLOATS = {"FP8": "float8_e4m3fn"}
"""Words of ModelOpt for formats of keys and values that a pool may have."""


def key_value_facts(text: object) -> dict[str, Fact | None]:
    """Return heads, head length and layout of the KV pool."""
    latent = attribute(text, ("kv_lora_rank",))
    if latent is not None:
        rotary = attribute(text, ("qk_rope_head_dim",))
        width = int(latent.value) + (int(rotary.value) if rotary else 0)
        return {
            "kv_layout": Fact("mla", "kv_lora_rank"),
            "num_kv_heads": Fact(1, "one latent row per token (kv_lora_rank)"),
            "head_dim": Fact(width, "kv_lora_rank + qk_rope_head_dim"),
        }
    queries = attribute(text, ("num_attention_heads",))
    hidden = attribute(text, ("hidden_size",))
    head_dim, heads = attribute(text, ("head_dim",)), attribute(text, ("num_key_value_heads",))
    if _goes_without(text, "head_dim") and queries and hidden:
        head_dim = Fact(int(hidden.value) // int(queries.value), "hidden_size / num_attention_heads")
    if _goes_without(text, "num_key_value_heads"):
        heads = queries
    usual = {"usual_num_kv_heads": heads, "usual_head_dim": head_dim}
    if head_dim and _another(text, ("v_head_dim", "swa_head_dim", "swa_v_head_dim"), head_dim):
        head_dim = None
    if heads and _another(text, ("swa_num_key_value_heads",), heads):
        heads = None
    return {"num_kv_heads": heads, "head_dim": head_dim, **usual, **_of_whole_texts(text)}


def _of_whole_texts(text: object) -> dict[str, Fact | None]:
    """Return heads and head length of the layers that see the whole text, those of which layers have several."""
    layers: Any = value_of(text, "per_layer_config")
    whole = [layer for layer, kind in enumerate(words_of(text, "layer_types")) if kind == "full_attention"]
    facts: dict[str, Fact | None] = {}
    for key, name in WHOLE.items():
        if not whole or value_of(text, name) != VARIES:
            continue
        values = [attribute(layers[layer], (name,)) for layer in whole]
        facts[key] = values[0] if len(set(values)) == 1 else None
    return facts


def _goes_without(text: object, name: str) -> bool:
    """Whether an architecture does not have this size, so that the usual rule holds; a bare file may leave it out."""
    return not isinstance(text, Bare) and value_of(text, name) is None


def _another(text: object, names: tuple[str, ...], usual: Fact) -> bool:
    """Whether values, or windowed layers, have another size than the usual one, so that no single size is right."""
    return any(fact.value != usual.value for name in names if (fact := attribute(text, (name,))))


def kv_dtype(config: object, text: object, quantization: Mapping[str, Any]) -> Fact | None:
    """Return the element type of a pool that the model was quantised for; None where it says none.

    ``quantization`` are the keys of hf_quant_config.json. A format that no pool can have is given in its own words.
    """
    for holder in (config, text):
        block = block_of(holder, "quantization_config") or block_of(holder, "compression_config")
        if fact := _scheme(block.get("kv_cache_scheme")) or _algorithm(block, "quantization_config"):
            return fact
    return _algorithm(quantization.get("quantization"), "hf_quant_config.json")


def _scheme(scheme: object) -> Fact | None:
    """Return the type that a ``kv_cache_scheme`` names (compressed-tensors, ModelOpt)."""
    if not isinstance(scheme, Mapping):
        return None
    kind, bits = str(scheme.get("type", "float")), scheme.get("num_bits")
    word = "float8_e4m3fn" if (kind, bits) == ("float", 8) else f"{kind}{bits}"
    return Fact(word, "quantization_config.kv_cache_scheme")


def _algorithm(value: object, where: str) -> Fact | None:
    """Return the type that a ``kv_cache_quant_algo`` names (ModelOpt)."""
    word = value.get("kv_cache_quant_algo") if isinstance(value, Mapping) else None
    return Fact(_FLOATS.get(word, word), f"{where}: kv_cache_quant_algo") if isinstance(word, str) else None
