"""Small targets in the directories in which DeepSeek-V3, GLM-4.5 and MiMo are published, their module included.

The target is transformers' own, made in memory; the module's weights are random, under the published names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

LAYERS, WIDTH, HEADS, EXPERTS, EXPERT_WIDTH = 2, 32, 4, 4, 16
KINDS = ("deepseek_v3", "glm4_moe", "mimo")
WEIGHTS = "model.safetensors"
_MOE: dict[str, Any] = {
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_WIDTH,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "deepseek_v3": {
        **_MOE,
        "num_key_value_heads": HEADS,
        "n_group": 2,
        "topk_group": 1,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 12,
    },
    "glm4_moe": {
        **_MOE,
        "num_key_value_heads": 2,
        "n_group": 1,
        "topk_group": 1,
        "head_dim": 16,
        "use_qk_norm": True,
        "attention_bias": True,
    },
    "mimo": {"num_key_value_heads": 2},
}
"""Beside those of every model."""


@dataclass(frozen=True)
class Published:
    """A target in memory, its directory and what the module in it is made of, by the names there."""

    model: PreTrainedModel
    path: Path
    module: dict[str, Tensor]
    prefix: str


def make_published(
    kind: str, path: Path, *, vocab: int, shards: int = 1, likely: bool = False, eos: int | None = 1
) -> Published:
    """Write a random target with a module, in one file of weights or in several with an index.

    likely: the module is often right. The layers of both count for little beside the embedding that they begin with.
    """
    torch.manual_seed(0)
    common = {
        "vocab_size": vocab, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "max_position_embeddings": 512, "initializer_range": 0.3, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": eos,
    }  # fmt: skip
    config = CONFIG_MAPPING["qwen2" if kind == "mimo" else kind](**common, **SETTINGS[kind])
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, value in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            value.normal_(std=0.3)
    if likely:
        _weaken(dict(model.named_parameters()))
    model.save_pretrained(path)
    prefix = "model.mtp_layers.0." if kind == "mimo" else f"model.layers.{LAYERS}."
    module = _module(kind, model)
    if likely:
        _weaken(module)
        zero, embedding = 0.05 * torch.randn(WIDTH, WIDTH), torch.eye(WIDTH)
        parts = [zero, embedding] if kind == "mimo" else [embedding, zero]
        module["input_proj.weight" if kind == "mimo" else "eh_proj.weight"] = torch.cat(parts, dim=1)
    content = json.loads((path / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    del content["rope_parameters"]  # published files have the older keys
    content |= {"rope_theta": 10000.0, "rope_scaling": None, "torch_dtype": content.pop("dtype")}
    if kind == "glm4_moe":
        content["partial_rotary_factor"] = 0.5
    if kind == "mimo":
        content |= {"model_type": "mimo", "architectures": ["MiMoForCausalLM"]}
        content["auto_map"] = {"AutoConfig": "configuration_mimo.MiMoConfig"}
    (path / "config.json").write_text(json.dumps(content))
    everything = load_file(path / WEIGHTS) | {prefix + name: value for name, value in module.items()}
    write_weights(path, everything, shards)
    return Published(model, path, module, prefix)


def write_weights(path: Path, weights: dict[str, Tensor], shards: int = 1) -> None:
    """Write weights to one file, or to several with an index, neighbours to different ones."""
    metadata = {"format": "pt"}
    (path / WEIGHTS).unlink(missing_ok=True)
    if shards == 1:
        save_file(weights, path / WEIGHTS, metadata=metadata)
        return
    places = {name: f"model-{number % shards + 1:05}-of-{shards:05}.safetensors" for number, name in enumerate(weights)}
    for file in {*places.values()}:
        save_file({name: weights[name] for name in weights if places[name] == file}, path / file, metadata=metadata)
    (path / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _module(kind: str, model: PreTrainedModel) -> dict[str, Tensor]:
    """Random weights of a module, by their published names behind its prefix."""
    norms = ["input_layernorm", "post_attention_layernorm"]
    if kind == "mimo":
        norms += ["token_layernorm", "hidden_layernorm", "final_layernorm"]
        matrices = {"input_proj": (WIDTH, 2 * WIDTH), **_attention(2, 8), **_mlp("mlp.", 48)}
    else:
        norms += ["enorm", "hnorm", "shared_head.norm"]
        matrices = {"eh_proj": (WIDTH, 2 * WIDTH), "mlp.gate": (EXPERTS, WIDTH)}
        for expert in range(EXPERTS):
            matrices |= _mlp(f"mlp.experts.{expert}.", EXPERT_WIDTH)
        matrices |= _mlp("mlp.shared_experts.", EXPERT_WIDTH)
        matrices |= _latent() if kind == "deepseek_v3" else _attention(2, 16)
    sizes = {f"{norm}.weight": WIDTH for norm in norms}
    if kind == "deepseek_v3":
        sizes |= {"self_attn.q_a_layernorm.weight": 24, "self_attn.kv_a_layernorm.weight": 16}
    if kind == "glm4_moe":
        sizes |= {"self_attn.q_norm.weight": 16, "self_attn.k_norm.weight": 16}
    weights = {name: 1 + 0.3 * torch.randn(size) for name, size in sizes.items()}
    weights |= {f"{name}.weight": 0.3 * torch.randn(shape) for name, shape in matrices.items()}
    if kind != "deepseek_v3":
        projections = [f"self_attn.{part}_proj" for part in "qkv"]
        weights |= {f"{name}.bias": 0.3 * torch.randn(matrices[name][0]) for name in projections}
    if kind != "mimo":
        weights["mlp.gate.e_score_correction_bias"] = 0.3 * torch.randn(EXPERTS)
        weights["embed_tokens.weight"] = model.get_parameter("model.embed_tokens.weight").detach().clone()
        weights["shared_head.head.weight"] = model.get_parameter("lm_head.weight").detach().clone()
    return weights


def _weaken(weights: Mapping[str, Tensor]) -> None:
    """Let layers add little to what they read, and norms beside them be plain."""
    with torch.no_grad():
        for name, value in weights.items():
            if name.endswith(("o_proj.weight", "down_proj.weight", "mlp.experts.down_proj")):
                value.mul_(0.03)
            elif name.startswith(("enorm", "token_layernorm", "shared_head.norm", "final_layernorm")):
                value.fill_(1)


def _attention(kv_heads: int, length: int) -> dict[str, tuple[int, int]]:
    keys = (kv_heads * length, WIDTH)
    return {
        "self_attn.q_proj": (HEADS * length, WIDTH),
        "self_attn.k_proj": keys,
        "self_attn.v_proj": keys,
        "self_attn.o_proj": (WIDTH, HEADS * length),
    }


def _latent() -> dict[str, tuple[int, int]]:
    return {
        "self_attn.q_a_proj": (24, WIDTH),
        "self_attn.q_b_proj": (HEADS * 12, 24),
        "self_attn.kv_a_proj_with_mqa": (20, WIDTH),
        "self_attn.kv_b_proj": (HEADS * 20, 16),
        "self_attn.o_proj": (WIDTH, HEADS * 12),
    }


def _mlp(prefix: str, width: int) -> dict[str, tuple[int, int]]:
    return {
        f"{prefix}gate_proj": (width, WIDTH),
        f"{prefix}up_proj": (width, WIDTH),
        f"{prefix}down_proj": (WIDTH, width),
    }
