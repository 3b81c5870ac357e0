"""The example models in the layouts that vLLM reads."""

from __future__ import annotations

import shutil
from pathlib import Path

from head_layouts import EXAMPLES, eagle, eagle3, read, write


def write_models(folder: Path) -> None:
    """Write `target`, `standalone`, `eagle` and `eagle3` below a folder.

    vLLM knows a head by the name of its architecture. It counts the layers whose outputs an EAGLE3 head reads from 1.
    """
    for model in ("target", "standalone"):
        shutil.copytree(EXAMPLES / model, folder / model)
    weights, config = read("eagle")
    write(folder / "eagle", eagle(weights), config | {"architectures": ["EagleLlamaForCausalLM"]})
    weights, config = read("eagle3")
    width = config["target_hidden_size"]
    wide = {
        "architectures": ["Eagle3LlamaForCausalLM"],
        "hidden_size": width,
        "num_attention_heads": width // config["head_dim"],
        "draft_vocab_size": config["vocab_size"],
        "eagle_aux_hidden_state_layer_ids": [
            layer + 1 for layer in config.pop("eagle_config")["eagle_aux_hidden_state_layer_ids"]
        ],
    }
    write(folder / "eagle3", eagle3(weights, config), config | wide)
