"""A model of MiMo-V2's kind, small and of random weights, which brings a module for each of its drafts along."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from head_layouts import read, write
from torch import Tensor

LAYERS, MODULES = 3, 3
WIDTH, HEADS, SHARED, HEAD, VALUE, INNER = 64, 4, 2, 16, 16, 64
"""Heads of queries, those of keys and values, and the sizes of a key and of a value."""
WINDOW = 12
"""Tokens that modules see, and the second layer: far less than most texts have."""
STRENGTH = 0.15
"""What layers add to the residual stream. Most tokens still follow from the last one alone, as far as which is the most
probable: so a module that reads little else is right about as often."""
FED = 0.3
"""How much a module reads of hidden states, beside the token."""


def write_modules(folder: Path) -> None:
    """Write target and modules into one folder, as they are published."""
    of = read("target")[1]
    draw = torch.Generator().manual_seed(1)

    def random(rows: int, columns: int, strength: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=draw) * strength / math.sqrt(columns)

    def layer(prefix: str, behind: str, *, windowed: bool) -> dict[str, Tensor]:
        weights = {
            "self_attn.q_proj.weight": random(HEADS * HEAD, WIDTH, 2),
            "self_attn.k_proj.weight": random(SHARED * HEAD, WIDTH, 2),
            "self_attn.v_proj.weight": random(SHARED * VALUE, WIDTH),
            "self_attn.o_proj.weight": random(WIDTH, HEADS * VALUE, STRENGTH),
            "mlp.gate_proj.weight": random(INNER, WIDTH),
            "mlp.up_proj.weight": random(INNER, WIDTH),
            "mlp.down_proj.weight": random(WIDTH, INNER, STRENGTH / 4),
            "input_layernorm.weight": torch.ones(WIDTH),
            f"{behind}.weight": torch.ones(WIDTH),
        }
        if windowed:
            weights["self_attn.attention_sink_bias"] = torch.randn(HEADS, generator=draw)
        return {f"{prefix}.{name}": tensor for name, tensor in weights.items()}

    embedding, head = torch.randn(of["vocab_size"], WIDTH, generator=draw), random(of["vocab_size"], WIDTH, 8)
    weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": torch.ones(WIDTH)}
    for number in range(LAYERS):
        weights |= layer(f"model.layers.{number}", "post_attention_layernorm", windowed=number == 1)
    for number in range(MODULES):
        module = f"model.mtp.layers.{number}"
        weights |= layer(module, "pre_mlp_layernorm", windowed=True) | {
            f"{module}.enorm.weight": torch.ones(WIDTH),
            f"{module}.hnorm.weight": torch.ones(WIDTH),
            f"{module}.eh_proj.weight": torch.cat((torch.eye(WIDTH), random(WIDTH, WIDTH, FED)), 1),
            f"{module}.final_layernorm.weight": torch.ones(WIDTH),
        }
    write(folder, weights, about(of))


def about(of: dict[str, Any]) -> dict[str, Any]:
    """The `config.json`, with the vocabulary of another model."""
    return {name: of[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")} | {
        "architectures": ["MiMoV2ForCausalLM"],
        "model_type": "mimo_v2_flash",
        "dtype": "float32",
        "hidden_size": WIDTH,
        "hidden_act": "silu",
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": SHARED,
        "head_dim": HEAD,
        "v_head_dim": VALUE,
        "swa_num_attention_heads": HEADS,
        "swa_num_key_value_heads": SHARED,
        "swa_head_dim": HEAD,
        "swa_v_head_dim": VALUE,
        "hybrid_layer_pattern": [number == 1 for number in range(LAYERS)],
        "layer_types": ["sliding_attention" if number == 1 else "full_attention" for number in range(LAYERS)],
        "moe_layer_freq": [0] * LAYERS,
        "mlp_layer_types": ["dense"] * LAYERS,
        "n_routed_experts": 2,
        "sliding_window": WINDOW,
        "sliding_window_size": WINDOW,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "attention_bias": False,
        "attention_value_scale": 0.707,
        "partial_rotary_factor": 0.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 1024,
        "layernorm_epsilon": 1e-5,
        "tie_word_embeddings": False,
    }
