"""The example models in the layouts that other engines read."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import pad

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "models"
WEIGHTS, CONFIG, EMBEDDING = "model.safetensors", "config.json", "model.embed_tokens.weight"
HIDDEN_ROWS = ("fc.weight", "o_proj.weight", "down_proj.weight", "q_proj.weight")
HIDDEN_COLUMNS = tuple(
    f"{of}.weight" for of in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head", "o_proj")
)
"""Weights of the EAGLE3 head whose rows, or columns, are entries of its residual stream or of its query heads."""

RMS = {"q_norm": (1.16, 1.36), "k_norm": (3.26, 1.96)}
"""How large entries of queries and keys of the DFlash head's two layers are on the whole, over its texts."""
MASK = "\u00ff"
"""The token of a byte that no text has, which stands for a place to fill."""


def eagle(head: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The EAGLE head with a layer that has no input norm, as published ones are: it drafts worse without it."""
    kept = {name: tensor for name, tensor in head.items() if not name.startswith("layer.input_layernorm")}
    return {name.replace("layer.", "layers.0.", 1): tensor for name, tensor in kept.items()}


def eagle3(head: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The EAGLE3 head with a residual stream as wide as the embedding: zeros are added.

    An RMS norm then takes the mean over more entries, which its weights make up for. Query heads that see nothing but
    zeros come along, so that their number still divides the width.
    """
    narrow, wide = config["hidden_size"], config["target_hidden_size"]

    def widened(name: str, tensor: Tensor) -> Tensor:
        if tensor.dim() == 1:
            return pad(tensor.float() * math.sqrt(narrow / wide), (0, wide - narrow))
        rows, columns = (name.endswith(ends) for ends in (HIDDEN_ROWS, HIDDEN_COLUMNS))
        return pad(tensor, (0, (wide - narrow) * columns, 0, (wide - narrow) * rows))

    unchanged = "midlayer.input_layernorm.weight"
    return {name: tensor if name == unchanged else widened(name, tensor) for name, tensor in head.items()}


def dflash(head: Mapping[str, Tensor], head_dim: int) -> dict[str, Tensor]:
    """The DFlash head without what it reads at a place to fill, and with norms of queries and keys.

    It was not trained with these norms: they have weights that leave queries and keys about as large as they are.
    """
    norms = {
        f"layers.{layer}.self_attn.{name}.weight": torch.full((head_dim,), size)
        for name, sizes in RMS.items()
        for layer, size in enumerate(sizes)
    }
    return {name: tensor for name, tensor in head.items() if name != "mask"} | norms


def mask_token() -> int:
    """The number of `MASK`."""
    token: int = json.loads((EXAMPLES / "target" / "tokenizer.json").read_text())["model"]["vocab"][MASK]
    return token


def read(model: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and configuration of an example model."""
    return load_file(EXAMPLES / model / WEIGHTS), json.loads((EXAMPLES / model / CONFIG).read_text())


def write(folder: Path, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write a model with the tokenizer of all example models."""
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EXAMPLES / "target" / name, folder / name)
