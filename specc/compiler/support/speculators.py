"""Drafts in the format of speculators: what their config.json says, as in other formats, and for which target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

MARK = "speculators_model_type"
"""The key that tells the format."""
KEYS = ("speculators_version", "speculators_config")
"""What such a config.json says beside it of any kind of draft."""
LAYERS = "aux_hidden_state_layer_ids"
"""The layers of a target that a draft of blocks reads."""
DTYPE_KEYS = ("dtype", "torch_dtype")
"""The element type's names, the newer one first."""


def merged(content: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a draft: those of its decoder, then its own, which win, also where an alias says them.

    Raises:
        ValueError: it has no decoder.
    """
    kind, decoder = content[MARK], content.get("transformer_layer_config")
    if not isinstance(kind, str) or not isinstance(decoder, dict):
        raise ValueError(f"in the format of speculators, of type {str(kind)[:60]!r}, without a decoder")
    own = {key: value for key, value in content.items() if value is not None and key != "model_type"}
    keys = own.keys() | ({*DTYPE_KEYS} if own.keys() & {*DTYPE_KEYS} else set[str]())
    return {key: value for key, value in cast("dict[str, Any]", decoder).items() if key not in keys} | own


def verifier(content: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """The name of a draft's target, and how many tokens are drafted for it; None for what it does not say."""
    speculation = content.get("speculators_config")
    block = cast("Mapping[str, Any]", speculation) if isinstance(speculation, Mapping) else {}
    target, methods = block.get("verifier"), block.get("proposal_methods")
    name = cast("Mapping[str, Any]", target).get("name_or_path") if isinstance(target, Mapping) else None
    first: object = cast("list[object]", methods)[0] if isinstance(methods, list) and methods else None
    tokens = cast("Mapping[str, Any]", first).get("speculative_tokens") if isinstance(first, Mapping) else None
    return (name if isinstance(name, str) else None), (tokens if type(tokens) is int and tokens > 0 else None)
