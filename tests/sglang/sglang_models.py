"""The example models in the layouts that SGLang reads."""

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

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "models"
WEIGHTS, CONFIG, EMBEDDING = "model.safetensors", "config.json", "model.embed_tokens.weight"
HIDDEN_ROWS = ("fc.weight", "o_proj.weight", "down_proj.weight", "q_proj.weight")
HIDDEN_COLUMNS = tuple(
    f"{of}.weight" for of in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head", "o_proj")
)
"""Weights of the EAGLE3 head whose rows, or columns, are entries of its residual stream or of its query heads."""
TOKEN_MAP = "tokens.pt"
"""The file of some tokens, beside the models."""
ODD = 2
"""How many tokens the target `odd` has more, which make its vocabulary no multiple of what SGLang pads heads to."""
UNTIED = {"tie_word_embeddings": False}
"""SGLang gives a head the target's `lm_head` in the place of its own, so it must have one."""


def write_models(folder: Path) -> None:
    """Write `target`, `standalone`, `eagle`, `eagle3` and its part, and a token map of three in four below a folder.

    SGLang captures the output of a layer where the next one begins, and the EAGLE3 head reads that of the last one. So
    the target gets a layer more, all zeros, which adds nothing to the residual stream. `odd`, and its head `odd_eagle`,
    have tokens more that score 0, which no text has.
    """
    weights, config = read("target")
    layers = config["num_hidden_layers"]
    config |= {"num_hidden_layers": layers + 1}
    last, another = (f"model.layers.{layer}." for layer in (layers - 1, layers))
    zeros = {name.replace(last, another): torch.zeros_like(weights[name]) for name in weights if name.startswith(last)}
    write(folder / "target", weights | zeros, config)
    odd = {"vocab_size": config["vocab_size"] + ODD}
    write(folder / "odd", weights | zeros | {EMBEDDING: pad(weights[EMBEDDING], (0, 0, 0, ODD))}, config | odd)
    shutil.copytree(EXAMPLES / "standalone", folder / "standalone")
    weights, config = read("eagle")
    head = config | {"architectures": ["LlamaForCausalLMEagle"]} | UNTIED
    write(folder / "eagle", eagle(weights), head)
    write(folder / "odd_eagle", eagle(weights), head | odd)
    weights, config = read("eagle3")
    width = config["target_hidden_size"]
    wide = {"hidden_size": width, "num_attention_heads": width // config["head_dim"]}
    vocabulary, architecture = config["vocab_size"], {"architectures": ["LlamaForCausalLMEagle3"]}
    head = eagle3(weights, config)
    write(folder / "eagle3", head, config | wide | architecture | {"draft_vocab_size": vocabulary})
    tokens = torch.tensor([token for token in range(vocabulary) if token % 4 != 3])
    offsets = {"d2t": tokens - torch.arange(len(tokens)), "t2d": torch.arange(vocabulary) % 4 != 3}
    part = head | {"lm_head.weight": head["lm_head.weight"][tokens]} | offsets
    write(folder / "eagle3_part", part, config | wide | architecture | {"draft_vocab_size": len(tokens)})
    torch.save(tokens.tolist(), folder / TOKEN_MAP)


def eagle(head: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The head as `LlamaForCausalLMEagle`, whose layer has no input norm: it drafts worse without it."""
    kept = {name: tensor for name, tensor in head.items() if not name.startswith("layer.input_layernorm")}
    renamed = {name.replace("layer.", "layers.0.", 1): tensor for name, tensor in kept.items()}
    return renamed | {"fc.bias": torch.zeros_like(head["fc.weight"][:, 0])}


def eagle3(head: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The head as `LlamaForCausalLMEagle3`, whose residual stream is as wide as the embedding: zeros are added.

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
