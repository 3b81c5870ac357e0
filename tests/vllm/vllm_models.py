"""The example models in the layouts that vLLM reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from head_layouts import EMBEDDING, EXAMPLES, eagle, eagle3, read, write
from torch import Tensor
from torch.nn.functional import pad

MODULE = {
    "embedding_norm": "token_layernorm",
    "hidden_norm": "hidden_layernorm",
    "fc": "input_proj",
    "norm": "final_layernorm",
    "layer": "",
}
"""What the parts of a module of multi-token prediction are called in MiMo."""


TOKEN_MAP = "hot.json"
"""A file with a quarter of the tokens."""
HOT = "_hot"
"""Behind the name of a draft: of the same draft, whose head has entries of these tokens alone."""


def write_models(folder: Path) -> None:
    """Write `target`, `standalone`, `eagle`, `eagle3`, `eagle3_part` and `mimo` below a folder, and `TOKEN_MAP`.

    vLLM knows a head by the name of its architecture. It counts the layers whose outputs an EAGLE3 head reads from 1,
    where SGLang, whose key stays there for specc, counts from 0. `eagle3_part` was trained to score a quarter of the
    tokens; `eagle3_hot` is `eagle3` without entries of others.

    `mimo` is the target in the words of MiMo, with the first of the example's modules of multi-token prediction in it.
    """
    for model in ("target", "standalone"):
        shutil.copytree(EXAMPLES / model, folder / model)
    weights, config = read("eagle")
    write(folder / "eagle", eagle(weights), config | {"architectures": ["EagleLlamaForCausalLM"]})
    hot = read("eagle3_reduced")[0]["d2t"]
    tokens = hot + torch.arange(len(hot))
    (folder / TOKEN_MAP).write_text(json.dumps(tokens.tolist()))
    for name, example in (("eagle3", "eagle3"), ("eagle3_part", "eagle3_reduced"), (f"eagle3{HOT}", "eagle3")):
        weights, config = read(example)
        if name.endswith(HOT):
            weights |= {"lm_head.weight": weights["lm_head.weight"][tokens], "d2t": hot}
        width = config["target_hidden_size"]
        wide = {
            "architectures": ["Eagle3LlamaForCausalLM"],
            "hidden_size": width,
            "num_attention_heads": width // config["head_dim"],
            "draft_vocab_size": len(weights["lm_head.weight"]),
            "eagle_aux_hidden_state_layer_ids": [
                layer + 1 for layer in config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
            ],
        }
        offsets = {"d2t": weights.pop("d2t")} if "d2t" in weights else {}
        write(folder / name, eagle3(weights, config) | offsets, config | wide)
    weights, config = read("target")
    named = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1}
    made = with_biases(weights | module(read("mtp")[0], weights, config["intermediate_size"]))
    made["lm_head.weight"] = weights[EMBEDDING].clone()
    write(folder / "mimo", made, config | named | {"tie_word_embeddings": False})


def module(heads: Mapping[str, Tensor], target: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """The first module, with an MLP as wide as the target's.

    MiMo's reads the hidden state first, and before the target's last norm, whose weights go into the module's own.
    """
    made: dict[str, Tensor] = {}
    for name, tensor in heads.items():
        if name.startswith("layers.0."):
            part, _, rest = name.removeprefix("layers.0.").partition(".")
            if part == "fc":
                tensor = torch.cat(tensor.chunk(2, dim=1)[::-1], dim=1)
            elif part == "hidden_norm":
                tensor = tensor * target["model.norm.weight"]
            elif "gate_proj" in rest or "up_proj" in rest:
                tensor = pad(tensor, (0, 0, 0, width - tensor.shape[0]))
            elif "down_proj" in rest:
                tensor = pad(tensor, (0, width - tensor.shape[1]))
            made[".".join(["model.mtp_layers.0", *filter(None, [MODULE[part]]), rest])] = tensor
    return made


def with_biases(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """And biases of queries, keys and values, all zeros."""
    biased = [name for name in weights if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]
    return {**weights, **{name.replace("weight", "bias"): torch.zeros(len(weights[name])) for name in biased}}
