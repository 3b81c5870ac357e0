"""A config.json of a type that is known here: what transformers' class says of it, without importing transformers.

`known_types.json` has a line for every type whose class only fills in what a file leaves out; a test compares all of
them with the classes. What is not plain in a file, such as a number that is a text, is left to the class to judge.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from specc.compiler.config.models.attributes import ratio
from specc.compiler.support.speculators import DTYPE_KEYS

TABLE = Path(__file__).with_name("known_types.json")
Default = int | bool | None

_PARTS = ("text_config", "decoder", "generator", "text_encoder")
"""Keys under which a class looks for the language model's part."""
_ATTENTION = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers that all keep keys and values of one size."""
_NESTED = frozenset(
    {
        "architectures", "auto_map", "compression_config", "dflash_config", "eagle_aux_hidden_state_layer_ids",
        "eagle_config", "eos_token_id", "id2label", "label2id", "layer_types", "quantization_config", "rope_parameters",
        "rope_scaling", "speculators_config", "target_layer_ids", "task_specific_params", "transformer_layer_config",
    }
)  # fmt: skip
"""Keys whose lists and blocks no class takes apart, or that are looked at here."""
_ROPE_TYPES = (None, "default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True)
class Known:
    """What a class of transformers adds to a file.

    Attributes:
        model_type: the type that it calls itself.
        language_model: the class of its language model; None for a type that has none by this name.
        defaults: attributes that are whole numbers, flags or nothing, where the file does not say them.
        names: attributes by which others of the file's are known, too: ``hidden_size`` of ``n_embd``.
        derived: attributes that follow from others where they are not said: ``num_key_value_heads``, ``head_dim``.

    """

    model_type: str
    language_model: str | None
    defaults: Mapping[str, Default]
    names: Mapping[str, str]
    derived: tuple[str, ...]


class Plain(SimpleNamespace):
    """A configuration as its class would have it; it is all a language model."""

    def get_text_config(self) -> object:
        """Return the language model's part, which is the whole."""
        return self


@cache
def known_types() -> dict[str, Known]:
    """What is known, by ``model_type``."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Known(**{**entry, "derived": tuple(entry["derived"])}) for name, entry in table["types"].items()}


def plain(content: Mapping[str, Any]) -> Plain | None:
    """Return what the keys of a config.json say together with their class; None where the class has to be asked."""
    known = known_types().get(str(content["model_type"]))
    if known is None or any(content.get(part) is not None for part in _PARTS):
        return None
    if any(isinstance(value, list | dict) for key, value in content.items() if key not in _NESTED):
        return None
    renamed = {known.names.get(key, key): value for key, value in content.items()}
    twice = len(renamed) < len(content)
    if twice or not all(
        _like(renamed[key], known.defaults[key]) for key in (renamed.keys() & known.defaults.keys()) - _NESTED
    ):
        return None
    values: dict[str, Any] = {**known.defaults, **renamed, "model_type": known.model_type}
    values["dtype"] = next((renamed[key] for key in DTYPE_KEYS if renamed.get(key) is not None), None)
    if not (_derive(values, known) and _position(values, known) and _layers(values)):
        return None
    values |= {name: values.get(own) for name, own in known.names.items()}
    return Plain(**values)


def _like(value: object, default: Default) -> bool:
    """Whether a value is of a default's kind: a flag, a number from 1, or a number or nothing."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    return (default is None and value is None) or (type(value) is int and value > 0)


def _derive(values: dict[str, Any], known: Known) -> bool:
    """Fill in what follows from other sizes; False where those do not go with each other."""
    named = {name: values.get(known.names.get(name, name)) for name in ("hidden_size", "num_attention_heads")}
    hidden, heads = named.values()
    if type(hidden) is not int or type(heads) is not int or heads < 1 or hidden % heads:
        return False
    derived = {"num_key_value_heads": heads, "head_dim": hidden // heads}
    for name in known.derived:
        if values.get(name) is None:
            values[name] = derived[name]
    if "use_sliding_window" in known.defaults and not values["use_sliding_window"]:
        values["sliding_window"] = None
    return True


def _position(values: dict[str, Any], known: Known) -> bool:
    """Write rotary scaling in the newer form; False where a class would have more to say of it."""
    blocks = [values[key] for key in ("rope_parameters", "rope_scaling") if values.get(key) is not None]
    if not blocks:
        return True
    if len(blocks) > 1 or "rope_parameters" not in known.defaults or not isinstance(blocks[0], dict):
        return False
    rope = cast("dict[str, Any]", blocks[0])
    kind = rope.get("rope_type", rope.get("type"))
    plainly = all(isinstance(value, int | float | str | bool | list) for value in rope.values())
    if kind not in _ROPE_TYPES or not plainly or ("factor" in rope and ratio(rope["factor"]) is None):
        return False
    values["rope_parameters"] = {**rope, "rope_type": kind or "default"}
    return True


def _layers(values: Mapping[str, Any]) -> bool:
    """Whether layers are of kinds that a class has nothing to say of."""
    kinds = values.get("layer_types")
    if kinds is None:
        return True
    listed = cast("list[object]", kinds) if isinstance(kinds, list) else []
    return len(listed) == values.get("num_hidden_layers") and set(map(str, listed)) <= _ATTENTION
