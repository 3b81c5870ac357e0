"""Draft heads as people publish them: the files and settings of each format. docs/models.md has the table.

What of its names and weights differs a head knows itself, see `SharingHead.adapt`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from specc.compiler.support.files.reading import read_text
from specc.compiler.support.speculators import MARK, merged
from specc.lab.engine.models.heads.own_modules import SAFE, has_modules, module_config, module_weights

PICKLED = "pytorch_model.bin"
UNREAD = ("t2d", "rotary_emb.inv_freq")
"""Ends of names that say nothing which others do not."""
REFUSED = ("norm_before_fc", "fc_norm", "use_aux_norm", "norm_output")
"""Settings of EAGLE3 heads that change what they compute, and are not implemented."""


def read_config(path: Path) -> PretrainedConfig:
    """The configuration of a head; raises ValueError for a setting that is not implemented."""
    content = json.loads(read_text(path / "config.json"))
    if has_modules(content):
        return module_config(content)
    if MARK in content:
        content = _of_speculators(content)
        config: Any = CONFIG_MAPPING[str(content["model_type"])].from_dict(content)
    else:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    for holder in (config.to_dict(), getattr(config, "eagle_config", None) or {}):
        for name in REFUSED:
            if holder.get(name):
                raise ValueError(f"the head has {name}, which this engine does not do")
    return config


def read_weights(path: Path, config: PretrainedConfig) -> dict[str, Tensor]:
    """The weights of a head by the names that they have here; raises what the readers of files raise."""
    if (module := getattr(config, "mtp_module", None)) is not None:
        weights = module_weights(path, module["prefix"])
    elif (path / SAFE).exists() or not (path / PICKLED).exists():
        weights = load_file(path / SAFE)
    else:
        weights = torch.load(path / PICKLED, map_location="cpu", weights_only=True)
    return {name.removeprefix("model."): value for name, value in weights.items() if not name.endswith(UNREAD)}


def renamed(weights: Mapping[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    """Weights whose names begin with ``old`` begin with ``new`` instead."""
    return {new + name[len(old) :] if name.startswith(old) else name: value for name, value in weights.items()}


def _of_speculators(content: Mapping[str, Any]) -> dict[str, Any]:
    """The keys as other formats have them: layers of the target count from 0, inside `eagle_config`."""
    head = {key: value for key, value in merged(content).items() if key != "auto_map"}
    layers = head.get("eagle_aux_hidden_state_layer_ids")
    if layers is not None:
        head["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in layers]}
    return head
