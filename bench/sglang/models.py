"""The models of the variants: models.py OUT MODELS. MODELS is examples/models; what is there already is kept.

* ex_...: the target and draft of specc's examples, and its EAGLE head in SGLang's layout.
* exmla_...: a random model like DeepSeek-V3, with latent KV rows of its widths, and an MTP module that drafts well.
* llama_..., mla_...: no weights, which SGLang makes up: the sizes of Llama-3.1-8B with an EAGLE head of one layer, and
  those of DeepSeek-V2-Lite, all layers dense (2.7 B parameters), with an MTP module of 64 experts.
* qwen3_..., moe_..., oss_..., mimo_..., gemma_..., q27_..., q35_...: as little, with drafts of other kinds; see
  `sizes.DRAFTED`.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sizes import DRAFTED, LATENT, LLAMA, MLA, eagle3
from torch import Tensor

SMALL_MLA = LATENT | {
    "hidden_size": 512,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 128,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "vocab_size": 2048,
}
STD = 0.04
"""The size of the weights of exmla_target's layers, beside embeddings of 1."""
LIFT = 4.5
"""By how many standard deviations of a score each token is followed by a token of its own, before layers add theirs."""


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Written last: the sign that a model is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def save(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """A model with weights."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, folder / "model.safetensors"
    )
    write_config(folder, config)


def example(out: Path, models: Path) -> None:
    """ex_target, ex_standalone, ex_eagle, whose first layer has no input norm in SGLang."""
    for name in ("target", "standalone"):
        shutil.copytree(models / name, out / f"ex_{name}", dirs_exist_ok=True)
    old = load_file(models / "eagle" / "model.safetensors")
    weights = {name.replace("layer.", "layers.0.", 1): tensor for name, tensor in old.items()}
    weights = {name: tensor for name, tensor in weights.items() if "input_layernorm" not in name}
    weights["fc.bias"] = torch.zeros_like(old["fc.weight"][:, 0])
    weights["embed_tokens.weight"] = load_file(models / "target" / "model.safetensors")["model.embed_tokens.weight"]
    config = json.loads((models / "eagle" / "config.json").read_text())
    save(out / "ex_eagle", config | {"architectures": ["LlamaForCausalLMEagle"], "tie_word_embeddings": False}, weights)


def latent_weights(config: dict[str, Any], draw: torch.Generator) -> dict[str, Tensor]:
    """Of a model like DeepSeek-V3 whose layers are dense, and of its MTP module, whose layer has experts.

    Each token has a token that likely follows, and layers change that now and then. The module passes on the embedding
    and leaves out the hidden state, so it says what likely follows.
    """
    width, vocab, layers, heads = (
        config[name] for name in ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads")
    )
    nope, rope, values = (config[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw) * STD

    def mlp(inner: int) -> dict[str, Tensor]:
        shapes = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
        return {f"{name}.weight": random(*shape) for name, shape in shapes.items()}

    def layer() -> dict[str, Tensor]:
        queries, latent = config["q_lora_rank"], config["kv_lora_rank"]
        made = {f"{name}.weight": torch.ones(width) for name in ("input_layernorm", "post_attention_layernorm")}
        attention = {
            "q_a_proj": random(queries, width),
            "q_a_layernorm": torch.ones(queries),
            "q_b_proj": random(heads * (nope + rope), queries),
            "kv_a_proj_with_mqa": random(latent + rope, width),
            "kv_a_layernorm": torch.ones(latent),
            "kv_b_proj": random(heads * (nope + values), latent),
            "o_proj": random(width, heads * values),
        }
        return made | {f"self_attn.{name}.weight": tensor for name, tensor in attention.items()}

    def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}

    embedding = torch.randn((vocab, width), generator=draw)
    head = random(vocab, width) + LIFT * STD * width**-0.5 * embedding[torch.randperm(vocab, generator=draw)]
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(width), "lm_head.weight": head}
    for number in range(layers):
        weights |= under(f"model.layers.{number}", layer() | under("mlp", mlp(config["intermediate_size"])))
    experts, inner = config["n_routed_experts"], config["moe_intermediate_size"]
    module = layer() | {
        "enorm.weight": torch.ones(width),
        "hnorm.weight": torch.ones(width),
        "eh_proj.weight": torch.cat((torch.eye(width), torch.zeros(width, width)), dim=1),
        "embed_tokens.weight": embedding.clone(),
        "shared_head.norm.weight": torch.ones(width),
        "shared_head.head.weight": head.clone(),
        "mlp.gate.weight": random(experts, width),
        "mlp.gate.e_score_correction_bias": torch.zeros(experts),
    }
    module |= under("mlp.shared_experts", mlp(inner * config["n_shared_experts"]))
    for number in range(experts):
        module |= under(f"mlp.experts.{number}", mlp(inner))
    return weights | under(f"model.layers.{layers}", module)


def small_mla(out: Path, _: Path) -> None:
    """exmla_target."""
    weights = latent_weights(SMALL_MLA, torch.Generator().manual_seed(6))
    exact = {name for name in weights if name.endswith("e_score_correction_bias")}
    rounded = {name: tensor if name in exact else tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    save(out / "exmla_target", SMALL_MLA, rounded)


def llama(out: Path, _: Path) -> None:
    """llama_target, llama_tokens.pt, llama_eagle3, llama_eagle."""
    write_config(out / "llama_target", LLAMA)
    torch.save(list(range(SCORED)), out / "llama_tokens.pt")
    write_config(out / "llama_eagle3", eagle3(LLAMA, inner=14336, heads=32))
    write_config(out / "llama_eagle", LLAMA | {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1})


def mla(out: Path, _: Path) -> None:
    """mla_target, with its module."""
    write_config(out / "mla_target", MLA)


def drafted(out: Path, _: Path) -> None:
    """A folder for each of `sizes.DRAFTED`, and tokens.json."""
    (out / "tokens.json").write_text(json.dumps([*range(SCORED)]))
    for models, folders in DRAFTED.items():
        for folder, config in folders.items():
            write_config(out / f"{models}_{folder}", config)


SCORED = 32768
"""Tokens that a head with a token map scores."""
MADE = {
    "ex_eagle": example,
    "exmla_target": small_mla,
    "llama_eagle": llama,
    "mla_target": mla,
    "q35_target": drafted,
}
"""What makes models, by the folder that is finished last."""


def main(out: Path, models: Path) -> None:
    """Make what is not there."""
    out.mkdir(parents=True, exist_ok=True)
    for last, make in MADE.items():
        if not (out / last / "config.json").exists():
            make(out, models)
    print("models:", *sorted(folder.name for folder in out.iterdir()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
