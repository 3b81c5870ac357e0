"""Heads in the format of speculators: what their config.json says, as in other formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

MARK = "speculators_model_type"
"""The key that tells the format."""
DTYPE_KEYS = ("dtype", "torch_dtype")
"""The element type's names, the newer one first."""


def merged(content: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an EAGLE3 head: those of its decoder, then its own, which win, also where an alias says them.

    Raises:
        ValueError: it is of another type, or has no decoder.
    """
    kind, decoder = content[MARK], content.get("transformer_layer_config")
    if kind != "eagle3" or not isinstance(decoder, dict):
        raise ValueError(f"in the format of speculators, of type {str(kind)[:60]!r}")
    own = {key: value for key, value in content.items() if value is not None and key != "model_type"}
    keys = own.keys() | ({*DTYPE_KEYS} if own.keys() & {*DTYPE_KEYS} else set[str]())
    return {key: value for key, value in cast("dict[str, Any]", decoder).items() if key not in keys} | own
