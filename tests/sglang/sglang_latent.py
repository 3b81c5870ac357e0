"""A model of DeepSeek-V3's kind, small and of random weights, whose module of multi-token prediction drafts well."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from head_layouts import read, write
from torch import Tensor

LAYERS, EXPERTS = 3, 2
WIDTH, HEADS, QUERY, LATENT, INNER = 128, 4, 48, 32, 64
ROTATED, OTHER, VALUE = 16, 16, 16
"""Of a head's queries and keys what turns with the position, and what does not; of its values."""
STRENGTH = 0.1
"""What layers add to the residual stream. Two tokens in three still follow from the last one alone, as far as which
is the most probable: so a module that reads little else is right about as often."""


def write_latent(folder: Path) -> None:
    """Write target and module into one folder, as they are published; the module's layer alone has experts."""
    of = read("target")[1]
    draw = torch.Generator().manual_seed(1)

    def random(rows: int, columns: int, strength: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=draw) * strength / math.sqrt(columns)

    def layer(number: int, strength: float, *networks: str) -> dict[str, Tensor]:
        weights = {
            "self_attn.q_a_proj": random(QUERY, WIDTH),
            "self_attn.q_a_layernorm": torch.ones(QUERY),
            "self_attn.q_b_proj": random(HEADS * (OTHER + ROTATED), QUERY, 2),
            "self_attn.kv_a_proj_with_mqa": random(LATENT + ROTATED, WIDTH),
            "self_attn.kv_a_layernorm": torch.ones(LATENT),
            "self_attn.kv_b_proj": random(HEADS * (OTHER + VALUE), LATENT, 2),
            "self_attn.o_proj": random(WIDTH, HEADS * VALUE, strength),
            "input_layernorm": torch.ones(WIDTH),
            "post_attention_layernorm": torch.ones(WIDTH),
        }
        for network in networks:
            weights[f"{network}.gate_proj"] = random(INNER, WIDTH)
            weights[f"{network}.up_proj"] = random(INNER, WIDTH)
            weights[f"{network}.down_proj"] = random(WIDTH, INNER, strength / 4)
        return {f"model.layers.{number}.{name}.weight": tensor for name, tensor in weights.items()}

    embedding, head = torch.randn(of["vocab_size"], WIDTH, generator=draw), random(of["vocab_size"], WIDTH, 8)
    weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": torch.ones(WIDTH)}
    for number in range(LAYERS):
        weights |= layer(number, STRENGTH, "mlp")
    experts = [f"mlp.experts.{expert}" for expert in range(EXPERTS)]
    weights |= layer(LAYERS, STRENGTH / 2, *experts, "mlp.shared_experts")
    module = {
        "enorm.weight": torch.ones(WIDTH),
        "hnorm.weight": torch.ones(WIDTH),
        "eh_proj.weight": torch.cat((torch.eye(WIDTH), random(WIDTH, WIDTH, STRENGTH)), 1),
        "shared_head.norm.weight": torch.ones(WIDTH),
        "embed_tokens.weight": embedding.clone(),
        "shared_head.head.weight": head.clone(),
        "mlp.gate.weight": random(EXPERTS, WIDTH),
        "mlp.gate.e_score_correction_bias": torch.zeros(EXPERTS),
    }
    write(folder, weights | {f"model.layers.{LAYERS}.{name}": weight for name, weight in module.items()}, about(of))


def about(of: dict[str, Any]) -> dict[str, Any]:
    """The `config.json`, with the vocabulary of another model."""
    scaling = {"type": "yarn", "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}
    return {name: of[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")} | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "float32",
        "hidden_size": WIDTH,
        "hidden_act": "silu",
        "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": QUERY,
        "kv_lora_rank": LATENT,
        "qk_rope_head_dim": ROTATED,
        "qk_nope_head_dim": OTHER,
        "v_head_dim": VALUE,
        "intermediate_size": INNER,
        "moe_intermediate_size": INNER,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": LAYERS,
        "moe_layer_freq": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": scaling | {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
