"""Which layers of a model keep keys and values, and what else a request leaves in them.

A layer's kind is a word: transformers' classes give one for every layer, files without a class have keys of their own.
Attention keeps keys and values per token. Recurrent layers (linear attention, state spaces, short convolutions) keep a
state per request, which verification must bring back to the last accepted token; `hybrid` layers keep both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from specc.compiler.config.models.attributes import Fact, attribute, block_of, value_of, words_of
from specc.compiler.config.models.states import state_facts

_RECURRENT = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent", "kda", "gated_delta_net"})
_BOTH = frozenset({"hybrid", "hybrid_sliding"})
_NOTHING = frozenset({"mlp", "moe"})
_STATE_SPACE = frozenset({"rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm", "mamba", "mamba2", "falcon_mamba"})
"""Types none of whose layers keeps keys and values."""

_PATTERN = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "moe"}
"""The letters of Nemotron-H's ``hybrid_override_pattern``."""


def layer_facts(text: object) -> dict[str, Fact | None]:
    """Return how many layers there are, how many keep keys and values, and what else layers keep.

    ``num_layers`` is 0 for a model of which no layer keeps keys and values. ``recurrent_state`` and ``index_keys`` are
    words for people.
    """
    every = attribute(text, ("num_hidden_layers",))
    model_type = str(value_of(text, "model_type"))
    facts = {"num_layers": every, "index_keys": _index_keys(text)}
    if every is None:
        return facts
    count = int(every.value)
    key, kinds = _kinds(text, count)
    if model_type in _STATE_SPACE:
        key, kinds = "model_type", ["recurrent"] * min(count, 1)
    if recurrent := [kind for kind in kinds if kind in _RECURRENT | _BOTH]:
        words = f"{len(recurrent)} of {count} layers ({', '.join(dict.fromkeys(recurrent))})"
        facts |= {"recurrent_state": Fact(words, key), "state_layers": Fact(len(recurrent), key), **state_facts(text)}
    keeping = count if not kinds else sum(kind not in _RECURRENT | _NOTHING for kind in kinds)
    shared = attribute(text, ("num_kv_shared_layers",))
    if shared is not None and int(shared.value) < keeping:
        key, keeping = "num_kv_shared_layers, which read those of another layer", keeping - int(shared.value)
    if keeping != count:
        facts |= {"num_layers": Fact(keeping, f"of {count} layers, by {key}"), "num_hidden_layers": every}
    return facts


def _kinds(text: object, count: int) -> tuple[str, list[str]]:
    """Return the key that says what every layer is, and the kinds; no kinds where no key says it for all layers."""
    for key, read in _READERS.items():
        kinds = read(text, key, count)
        if len(kinds) == count:
            return key, kinds
    return "", []


def _listed(text: object, key: str, count: int) -> list[str]:
    """Return kinds that are written out."""
    return words_of(text, key)


def _pattern(text: object, key: str, count: int) -> list[str]:
    """Return kinds that are letters of one word."""
    word = value_of(text, key)
    return [_PATTERN.get(letter, letter) for letter in word] if isinstance(word, str) else []


def _numbers(text: object, key: str) -> list[int]:
    return _numbers_of(value_of(text, key))


def _numbers_of(value: object) -> list[int]:
    listed = cast("list[object]", value) if isinstance(value, list) else []
    return [number for number in listed if type(number) is int]


def _flags(text: object, key: str, count: int) -> list[str]:
    """Return kinds that are 1 for attention and 0 for a recurrent layer (MiniMax)."""
    return ["full_attention" if flag else "linear_attention" for flag in _numbers(text, key)]


def _indices(text: object, key: str, count: int) -> list[str]:
    """Return kinds of which those of attention are counted out, from 0 (Bamba)."""
    attention = set(_numbers(text, key))
    return ["full_attention" if layer in attention else "mamba" for layer in range(count)] if attention else []


def _interval(text: object, key: str, count: int) -> list[str]:
    """Return kinds of which every n-th is attention (Qwen3-Next)."""
    every = attribute(text, (key,))
    if every is None:
        return []
    return ["linear_attention" if (layer + 1) % int(every.value) else "full_attention" for layer in range(count)]


def _grouped(text: object, key: str, count: int) -> list[str]:
    """Return kinds of groups of so many layers, of which the last one is attention, as are those of no whole group."""
    size = attribute(text, (key,))
    if size is None:
        return []
    every = int(size.value)
    attending = {*range(every - 1, count, every), *range(count // every * every, count)}
    return ["full_attention" if layer in attending else "linear_attention" for layer in range(count)]


def _listed_apart(text: object, key: str, count: int) -> list[str]:
    """Return kinds of which those of attention are listed in a block, counted from 1 or from 0 (Kimi, GLM)."""
    lists = {name: set(_numbers_of(block_of(text, key).get(name))) for name in ("kda_layers", "full_attn_layers")}
    recurrent, attention = lists.values()
    first = 0 if 0 in recurrent | attention else 1
    if recurrent | attention != set(range(first, first + count)) or recurrent & attention:
        return []
    return ["kda" if first + layer in recurrent else "full_attention" for layer in range(count)]


def _convolved(text: object, key: str, count: int) -> list[str]:
    """Return kinds of a model all of whose layers have short convolutions beside attention (Inkling)."""
    return ["hybrid"] * count if value_of(text, key) is True else []


_READERS: dict[str, Callable[[object, str, int], list[str]]] = {
    "layer_types": _listed,
    "layers_block_type": _listed,
    "hybrid_override_pattern": _pattern,
    "attn_type_list": _flags,
    "attn_layer_indices": _indices,
    "full_attention_interval": _interval,
    "linear_attn_config": _listed_apart,
    "layer_group_size": _grouped,
    "use_sconv": _convolved,
}
"""Keys that say what every layer is, in the order in which they are asked."""


def _index_keys(text: object) -> Fact | None:
    """Return the length of the keys that a sparse attention's indexer keeps per token beside the others."""
    length = attribute(text, ("index_head_dim",))
    return length and Fact(f"index keys of {length.value} elements per token", length.origin)
