"""A model of MiMo-V2's kind, small and of random weights, which brings a module for each of its drafts along."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from head_layouts import read, write
from sglang_files import ON_GPU
from torch import Tensor

WINDOWED = [False, True, False]
"""Of each layer, whether it sees a window alone; modules all do."""
MODULES = 3
WIDTH, HEADS, SHARED, KEY, VALUE, INNER = 64, 8, 4, 16, 16 if ON_GPU else 12, 64
"""Heads of queries, and of keys and values, twice as many in windows; the sizes of a key and of a value, which
FlashAttention 3 has apart for larger ones alone. No fewer heads than an engine has ranks: on a CPU SGLang fills fewer
ones up, but not their sinks."""
WINDOW = 12
"""Tokens that windows have, far less than most texts."""
STRENGTH, FED = 0.15, 0.5
"""What layers add to the residual stream, and modules take of hidden states. Most tokens follow from the last one
alone, as far as which is the most probable: so a module that reads little else is right about as often."""
ROTATED, BASE, SCALE = 0.5, 10000.0, 0.707
"""What part of a key turns with the position, and how slowly; what values are multiplied by."""
ALONE = "alone"
"""Behind the name of a target: the folder that transformers reads it from."""


def write_modules(folder: Path, name: str) -> None:
    """Write a target with its modules, as they are published, and the target as transformers has it, below a folder."""
    of = read("target")[1]
    draw = torch.Generator().manual_seed(1)

    def random(rows: int, columns: int, strength: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=draw) * strength / math.sqrt(columns)

    def layer(prefix: str, behind: str, *, windowed: bool) -> dict[str, Tensor]:
        shared = SHARED * (1 + windowed)
        weights = {
            "self_attn.q_proj.weight": random(HEADS * KEY, WIDTH, 2),
            "self_attn.k_proj.weight": random(shared * KEY, WIDTH, 2),
            "self_attn.v_proj.weight": random(shared * VALUE, WIDTH),
            "self_attn.o_proj.weight": random(WIDTH, HEADS * VALUE, STRENGTH),
            "mlp.gate_proj.weight": random(INNER, WIDTH),
            "mlp.up_proj.weight": random(INNER, WIDTH),
            "mlp.down_proj.weight": random(WIDTH, INNER, STRENGTH / 4),
            "input_layernorm.weight": torch.ones(WIDTH),
            f"{behind}.weight": torch.ones(WIDTH),
        }
        if windowed:
            weights[f"self_attn.{SINKS}"] = torch.randn(HEADS, generator=draw)
        return {f"{prefix}.{name}": tensor for name, tensor in weights.items()}

    embedding, head = torch.randn(of["vocab_size"], WIDTH, generator=draw), random(of["vocab_size"], WIDTH, 8)
    target = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": torch.ones(WIDTH)}
    for number, windowed in enumerate(WINDOWED):
        target |= layer(f"model.layers.{number}", "post_attention_layernorm", windowed=windowed)
    modules = dict[str, Tensor]()
    for number in range(MODULES):
        module = f"model.mtp.layers.{number}"
        modules |= layer(module, "pre_mlp_layernorm", windowed=True) | {
            f"{module}.enorm.weight": torch.ones(WIDTH),
            f"{module}.hnorm.weight": torch.ones(WIDTH),
            f"{module}.eh_proj.weight": torch.cat((torch.eye(WIDTH), random(WIDTH, WIDTH, FED)), 1),
            f"{module}.final_layernorm.weight": torch.ones(WIDTH),
        }
    about = {key: of[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")} | COMMON
    write(folder / name, target | modules, about | PUBLISHED)
    renamed = {name.replace(SINKS, "sinks"): tensor for name, tensor in target.items()}
    write(folder / f"{name}-{ALONE}", renamed, about | TRANSFORMERS)


SINKS = "attention_sink_bias"
COMMON: dict[str, Any] = {
    "model_type": "mimo_v2_flash",
    "dtype": "float32",
    "hidden_size": WIDTH,
    "hidden_act": "silu",
    "intermediate_size": INNER,
    "num_hidden_layers": len(WINDOWED),
    "num_attention_heads": HEADS,
    "num_key_value_heads": SHARED,
    "head_dim": KEY,
    "v_head_dim": VALUE,
    "mlp_layer_types": ["dense"] * len(WINDOWED),
    "layer_types": ["sliding_attention" if windowed else "full_attention" for windowed in WINDOWED],
    "attention_bias": False,
    "attention_value_scale": SCALE,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
_ROTARY = {"rope_type": "default", "rope_theta": BASE}
PUBLISHED: dict[str, Any] = {
    "architectures": ["MiMoV2ForCausalLM"],
    "hybrid_layer_pattern": [int(windowed) for windowed in WINDOWED],
    "swa_num_attention_heads": HEADS,
    "swa_num_key_value_heads": 2 * SHARED,
    "swa_head_dim": KEY,
    "swa_v_head_dim": VALUE,
    "moe_layer_freq": [0] * len(WINDOWED),
    "n_routed_experts": 2,
    "sliding_window": WINDOW,
    "sliding_window_size": WINDOW,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "partial_rotary_factor": ROTATED,
    "rope_parameters": _ROTARY,
    "layernorm_epsilon": 1e-5,
}
"""What SGLang reads beside `COMMON`."""
TRANSFORMERS: dict[str, Any] = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "rope_parameters": dict.fromkeys(
        ("full_attention", "sliding_attention"), _ROTARY | {"partial_rotary_factor": ROTATED}
    ),
    "sliding_window": WINDOW + 1,
    "rms_norm_eps": 1e-5,
}
"""What transformers reads, of whose windows a token itself is one; in SGLang it is beside them."""
