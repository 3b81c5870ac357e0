"""The example DFlash head, and its target, in the layouts that SGLang reads."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from head_layouts import EMBEDDING, read, write
from safetensors.torch import load_file

RMS = {"q_norm": (1.16, 1.36), "k_norm": (3.26, 1.96)}
"""How large entries of queries and keys of the head's two layers are on the whole, over its texts."""
MASK = "\u00ff"
"""The token of a byte that no text has."""


def write_blocks(folder: Path) -> None:
    """Write `dflash`, and its target `masked` beside the `target` of `write_models`, whose texts it has.

    SGLang norms queries and keys, which this head was not trained with: the norms have weights that leave them about as
    large as they are. Its mask is a token of the target's, whose head scores it as ever. The draft reads what the last
    layer leaves, which SGLang captures where another one begins; see `write_models`.
    """
    weights, config = read("dflash")
    head_dim, mask = config["head_dim"], weights.pop("mask")
    for name, sizes in RMS.items():
        weights |= {
            f"layers.{layer}.self_attn.{name}.weight": torch.full((head_dim,), sizes[layer]) for layer in (0, 1)
        }
    target, of = folder / "target", read("target")[1]
    kept = load_file(target / "model.safetensors")
    token = json.loads((target / "tokenizer.json").read_text())["model"]["vocab"][MASK]
    layers = of["num_hidden_layers"] + 1
    options = config["dflash_config"] | {"mask_token_id": token}
    more = {"architectures": ["DFlashDraftModel"], "num_target_layers": layers}
    write(folder / "dflash", weights, config | more | {"dflash_config": options})
    embedding = kept[EMBEDDING].clone()
    embedding[token] = mask
    sizes = {"num_hidden_layers": layers, "tie_word_embeddings": False}
    untied = {EMBEDDING: embedding, "lm_head.weight": kept[EMBEDDING]}
    write(folder / "masked", kept | untied, of | sizes)
