"""Draft heads as people publish them: whose names, files and settings their weights have, and what of it is read.

| format | files | differs from the heads here in |
|---|---|---|
| this project's | `model.safetensors` | nothing |
| EAGLE (SafeAILab) | the same or `pytorch_model.bin` | `layers.0` for `layer`, which has no norm before its attention; `fc` may have a bias; an embedding of its own |
| EAGLE3 (SafeAILab, SpecForge) | the same or `pytorch_model.bin` | offsets `d2t`, the mask `t2d`, which says the same, an embedding of its own |
| EAGLE3 (speculators) | the same | keys of the layer inside `transformer_layer_config`, layers counted from 1, `layers.0` for `midlayer`, `norm_before_residual` |
"""  # noqa: E501

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from specc.support.reading import read_text

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
UNREAD = ("t2d", "rotary_emb.inv_freq")
"""Ends of names that say nothing which others do not."""
REFUSED = ("norm_before_fc", "fc_norm", "use_aux_norm", "norm_output")
"""Settings of EAGLE3 heads that change what they compute, and are not implemented."""


def read_config(path: Path) -> PretrainedConfig:
    """The configuration of a head; raises ValueError for a setting that is not implemented."""
    content = json.loads(read_text(path / "config.json"))
    if "speculators_model_type" in content:
        content = _of_speculators(content)
        config: Any = CONFIG_MAPPING[str(content["model_type"])].from_dict(content)
    else:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    for holder in (config.to_dict(), getattr(config, "eagle_config", None) or {}):
        for name in REFUSED:
            if holder.get(name):
                raise ValueError(f"the head has {name}, which this engine does not do")
    return config


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a head by the names that they have here; raises what the readers of files raise."""
    if (path / SAFE).exists() or not (path / PICKLED).exists():
        found = load_file(path / SAFE)
    else:
        found = torch.load(path / PICKLED, map_location="cpu", weights_only=True)
    return {name.removeprefix("model."): value for name, value in found.items() if not name.endswith(UNREAD)}


def renamed(weights: Mapping[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    """Weights whose names begin with ``old`` begin with ``new`` instead."""
    return {new + name[len(old) :] if name.startswith(old) else name: value for name, value in weights.items()}


def _of_speculators(content: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the head's layer with its own, as in other formats; layers of the target count from 0."""
    kind, layer = content["speculators_model_type"], content.get("transformer_layer_config")
    if kind != "eagle3" or not isinstance(layer, dict):
        raise ValueError(f"a head in the format of speculators, of type {str(kind)[:60]!r}")
    own = {key: value for key, value in content.items() if value is not None and key not in ("model_type", "auto_map")}
    layers = own.get("eagle_aux_hidden_state_layer_ids")
    if layers is not None:
        own["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in layers]}
    return {**layer, **own}
