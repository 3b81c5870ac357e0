"""Lines of a configuration that say of a model's layers what its directory does not settle for all of them."""

from __future__ import annotations

from collections.abc import Iterator

from specc.compiler.config.models import ModelFacts

_SIZES = ("num_kv_heads", "head_dim")
"""Keys of which layers with a window may have another value."""


def sizes_of(model: ModelFacts, *, chain: bool) -> Iterator[str]:
    """Return the lines of sizes that layers do not share, as those that see the whole text have them.

    Where nothing says which those are, the size that config.json names stands for all in a chain, which moves no keys
    and values.
    """
    for key in _SIZES:
        if key in model.facts:
            continue
        if (whole := model.facts.get(f"whole_{key}")) is not None:
            yield f"  {key}: {whole.value} # of layers that see the whole text"
        elif chain and (usual := model.facts.get(f"usual_{key}")) is not None:
            yield f"  {key}: {usual.value} # {usual.origin}; other layers differ, and a chain moves none of it"
