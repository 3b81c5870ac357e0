"""Lines of a configuration that say of a model's layers what its directory does not settle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from specc.config.models import ModelFacts
from specc.config.models.config_json import read_directory
from specc.config.sglang.server import Started

_SIZES = {"num_kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
"""Keys of a configuration, and of config.json, that layers with a window may have another value of."""


def modules_of(server: Started, draft: ModelFacts) -> Iterator[str]:
    """Return the line of how many modules draft, where the draft does not say how many it has."""
    if server.facts.modules and "num_mtp_modules" not in draft.facts:
        yield f"  num_layers: {server.num_steps.value} # a module for each step"


def sizes_of(server: Started, directory: Path, model: ModelFacts) -> Iterator[str]:
    """Return the lines of sizes that layers do not share, as those that see the whole text have them.

    Where nothing says which those are, that of config.json stands for all in a chain, which moves no keys and values.
    """
    for key, name in _SIZES.items():
        if key in model.facts:
            continue
        if (whole := model.facts.get(f"whole_{key}")) is not None:
            yield f"  {key}: {whole.value} # of layers that see the whole text"
        elif server.topk.value == 1:
            size = read_directory(directory, str(directory)).content.get(name)
            if type(size) is int:
                yield f"  {key}: {size} # {name}; other layers differ, and a chain moves none of it"
