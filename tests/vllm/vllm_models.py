"""The example models in the layouts that vLLM reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from assistant_models import write_assistant
from head_layouts import CONFIG, EMBEDDING, EXAMPLES, WEIGHTS, dflash, eagle, eagle3, mask_token, read, write
from hybrid_models import write_qwen3_next
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM

MODULE = {
    "embedding_norm": "token_layernorm",
    "hidden_norm": "hidden_layernorm",
    "fc": "input_proj",
    "norm": "final_layernorm",
    "layer": "",
}
"""What the parts of a module of multi-token prediction are called in MiMo."""
PARTS = {"embedding_norm": "enorm", "hidden_norm": "hnorm", "fc": "eh_proj", "norm": "shared_head.norm", "layer": ""}
"""And in GLM-4.5."""
SEVERAL = 3
"""Modules of multi-token prediction in `glm`."""

HYBRIDS = {"qwen3_next": 64, "qwen3_next_wide": 128}
"""Targets that keep recurrent state, with a module of multi-token prediction, and how wide the heads of that are.

A state of the first is as large as keys and values of 32 tokens in the other layers, one of the second much larger.
"""
SPACES = "nemotron"
"""Another one, of Nemotron-H's kind, whose state is that of state spaces (Mamba-2): it is not among those written."""
GEMMA, ASSISTANT = "gemma", "assistant"
"""A target of Gemma 4's kind, and what drafts for it by its keys and values."""
NARROW, WIDE, SHARP = 32, 64, 1.5
"""The width of their heads where a layer sees a window, and where it sees the whole text; how far scores are apart."""
WINDOW = 40
"""Tokens that a layer of `dflash_windows` sees."""
RANK, BIAS = 64, 0.3
"""The rank of the Markov head of `dspark`, and how much of what the target says is its bias."""
TOKEN_MAP = "hot.json"
"""A file with a quarter of the tokens."""
HOT = "_hot"
"""Behind the name of a draft: of the same draft, whose head has entries of these tokens alone."""


def write_models(folder: Path) -> None:
    """Write `target`, `standalone`, `eagle`, `eagle3`, `eagle3_part`, `mimo`, `glm`, `gemma` and others below a folder.

    vLLM knows a head by the name of its architecture. It counts the layers whose outputs an EAGLE3 head reads from 1,
    where SGLang, whose key stays there for specc, counts from 0. `eagle3_part` was trained to score a quarter of the
    tokens, which are in the file `TOKEN_MAP`; `eagle3_hot` is `eagle3` without entries of others.

    `mimo` is the target in the words of MiMo, with the first of the example's modules of multi-token prediction in it.
    `glm` is the target in those of GLM-4.5, with several modules; vLLM has each read what the one before it made.
    `gemma` is a Gemma4ForConditionalGeneration, for which `assistant` drafts.
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
    write_blocks(folder / "dflash")
    write_blocks(folder / "dflash_speculators", speculators=True)
    windows = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}
    write_blocks(folder / "dflash_windows", {"causal": False}, **windows, sliding_window=WINDOW)
    write_markov(folder)
    weights, config = read("target")
    words = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1}
    made = with_biases(weights | module(read("mtp")[0], weights, config["intermediate_size"]))
    made["lm_head.weight"] = weights[EMBEDDING].clone()
    write(folder / "mimo", made, config | words | {"tie_word_embeddings": False})
    write(folder / "glm", *modules(weights, config))
    for name, wide in HYBRIDS.items():
        write_qwen3_next(folder / name, wide)
    write_assistant(folder / GEMMA, folder / ASSISTANT, NARROW, WIDE, SHARP)


BLOCKS_SAY = ("architectures", "markov_rank", "mask_token_id", "target_layer_ids", "block_size")
"""What a config.json says of blocks beside their decoder."""


def write_blocks(
    folder: Path, said: Mapping[str, Any] | None = None, *, speculators: bool = False, **more: Any
) -> None:
    """Write the DFlash head, whose mask vLLM reads from a file in the place of a token's embedding.

    Its one head of keys and values is there twice, so that blocks have as many tokens as those of the target. `said` is
    what else its `dflash_config` says, `more` the rest of config.json; `speculators` asks for their format.
    """
    weights, config = read("dflash")
    twice = {
        name: torch.cat([of, of]) for name, of in weights.items() if name.endswith(("k_proj.weight", "v_proj.weight"))
    }
    options = config["dflash_config"] | {"mask_token_id": mask_token()} | dict(said or {})
    more |= {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dflash_config": options}
    config |= more | {"num_key_value_heads": 2}
    made = dflash(weights | twice, config["head_dim"])
    write(folder, made, as_speculators("dflash", config) if speculators else config)
    torch.save(weights["mask"], folder / "mask_embedding.pt")


def write_markov(folder: Path) -> None:
    """Write drafts of DSPARK: `dflash`, with a Markov head of what the target says behind single tokens.

    They read the mask as the embedding of a token. `dspark` drafts where `dflash` does, and `dspark_speculators` is the
    same in the format of speculators. `dspark_anchored` gives the first draft in the bonus token's row, as published
    ones do, which its layers have not learned.
    """
    target = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)
    tokens = torch.arange(target.config.vocab_size)
    with torch.inference_mode():
        said = target(tokens[:, None]).logits[:, 0]
    left, sizes, right = torch.linalg.svd(said - said.mean(0), full_matrices=False)
    sizes = (BIAS * sizes[:RANK]).sqrt()
    tables = {"markov_w1": left[:, :RANK] * sizes, "markov_w2": right[:RANK].T * sizes}
    weights, config = load_file(folder / "dflash" / WEIGHTS), json.loads((folder / "dflash" / CONFIG).read_text())
    weights |= {f"markov_head.{name}.weight": table for name, table in tables.items()}
    weights["embed_tokens.weight"] = target.model.embed_tokens.weight.detach().clone()
    weights["embed_tokens.weight"][mask_token()] = torch.load(folder / "dflash" / "mask_embedding.pt")
    config |= config["dflash_config"] | {"architectures": ["Qwen3DSparkModel"], "markov_rank": RANK}
    for name, anchored in (("dspark", False), ("dspark_anchored", True)):
        write(folder / name, weights, config | {"sample_from_anchor": anchored, "block_size": 3})
    write(folder / "dspark_speculators", weights, as_speculators("dspark", config, markov_rank=RANK))


def as_speculators(kind: str, config: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What a draft of blocks of 4 says in the format of speculators, whose layers of the target count from 1."""
    decoder = {name: value for name, value in config.items() if "dflash" not in name and name not in BLOCKS_SAY}
    method = {"proposal_type": "greedy", "speculative_tokens": 3}
    of_target = {"architectures": ["LlamaForCausalLM"], "name_or_path": "target"}
    return more | {
        "architectures": ["DSparkDraftModel" if kind == "dspark" else "DFlashDraftModel"],
        "speculators_model_type": kind,
        "speculators_version": "0.6.0",
        "speculators_config": {"algorithm": kind, "proposal_methods": [method], "verifier": of_target},
        "transformer_layer_config": decoder | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
        "block_size": 4,
        "draft_vocab_size": config["vocab_size"],
        "mask_token_id": config["dflash_config"]["mask_token_id"],
        "aux_hidden_state_layer_ids": [layer + 1 for layer in config["dflash_config"]["target_layer_ids"]],
        "dtype": "float32",
    }


def named(heads: Mapping[str, Tensor], width: int, parts: Mapping[str, str], before: str) -> dict[str, Tensor]:
    """The first module in another model's words, behind `before`, with an MLP of so many entries."""
    made: dict[str, Tensor] = {}
    for name, tensor in heads.items():
        if name.startswith("layers.0."):
            part, _, rest = name.removeprefix("layers.0.").partition(".")
            if "gate_proj" in rest or "up_proj" in rest:
                tensor = pad(tensor, (0, 0, 0, width - tensor.shape[0]))
            elif "down_proj" in rest:
                tensor = pad(tensor, (0, width - tensor.shape[1]))
            made[".".join([before, *filter(None, [parts[part]]), rest])] = tensor
    return made


def module(heads: Mapping[str, Tensor], target: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """The first module in MiMo's words.

    MiMo's reads the hidden state first, and before the target's last norm, whose weights go into the module's own.
    """
    made = named(heads, width, MODULE, before := "model.mtp_layers.0")
    made[f"{before}.input_proj.weight"] = torch.cat(made[f"{before}.input_proj.weight"].chunk(2, dim=1)[::-1], dim=1)
    made[f"{before}.hidden_layernorm.weight"] *= target["model.norm.weight"]
    return made


def modules(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The target in GLM-4.5's words, and `SEVERAL` modules behind its layers.

    All of them are the first one, each with other errors, for that has learned to go on from what the target makes. The
    last layer of the target and the modules have experts, as GLM's, of which those that are chosen add nothing.
    """
    layers, width, random = config["num_hidden_layers"], config["intermediate_size"], torch.Generator().manual_seed(1)
    made = {**weights, "lm_head.weight": weights[EMBEDDING].clone()}
    for layer in range(layers, layers + SEVERAL):
        own = named(read("mtp")[0], width, PARTS, f"model.layers.{layer}")
        for name, tensor in own.items():
            errors = 0.1 * (layer - layers > 0) * torch.randn(tensor.shape, generator=random)
            made[name] = (tensor * (1 + errors * (tensor.dim() > 1))).to(tensor.dtype)
        made[f"model.layers.{layer}.shared_head.head.weight"] = weights[EMBEDDING].clone()
    for layer in range(layers - 1, layers + SEVERAL):
        mlp = f"model.layers.{layer}.mlp"
        for part in ("gate_proj", "up_proj", "down_proj"):
            tensor = made[f"{mlp}.shared_experts.{part}.weight"] = made.pop(f"{mlp}.{part}.weight")
            made |= {f"{mlp}.experts.{expert}.{part}.weight": torch.zeros_like(tensor) for expert in range(2)}
        made[f"{mlp}.gate.weight"] = torch.zeros(2, config["hidden_size"])
        made[f"{mlp}.gate.e_score_correction_bias"] = torch.zeros(2)
    experts = {"n_routed_experts": 2, "n_shared_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": width}
    chosen = {"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0}
    return made, {
        **config, **experts, **chosen, "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe",
        "num_nextn_predict_layers": SEVERAL, "first_k_dense_replace": layers - 1, "use_qk_norm": False,
        "tie_word_embeddings": False,
        "rope_parameters": config["rope_parameters"] | {"partial_rotary_factor": 1.0},
    }  # fmt: skip


def with_biases(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """And biases of queries, keys and values, all zeros."""
    biased = [name for name in weights if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]
    return {**weights, **{name.replace("weight", "bias"): torch.zeros(len(weights[name])) for name in biased}}
