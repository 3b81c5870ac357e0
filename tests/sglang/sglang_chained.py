"""A model of Step-3.5's kind, small and of random weights, each of whose modules reads what the one before it made."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from head_layouts import read, write
from torch import Tensor

LAYERS, MODULES = 45, 3
"""SGLang calls the layer of every module number 45, and keeps keys and values for the first layer behind the target."""
WIDTH, HEADS, SHARED, SIZE, INNER = 64, 4, 2, 16, 64
WINDOW = 12
STRENGTH, OF_MODULES, FED = 0.04, 0.15, 0.5
"""What layers of the target and of modules add to the residual stream, and modules take of hidden states."""
EVERY = LAYERS + MODULES


def write_chained(folder: Path) -> None:
    """Write target and modules into one folder, as they are published. Norms are kept as what they are above 1."""
    of = read("target")[1]
    draw = torch.Generator().manual_seed(1)

    def random(rows: int, columns: int, strength: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=draw) * strength / math.sqrt(columns)

    def layer(prefix: str, strength: float) -> dict[str, Tensor]:
        weights = {
            "self_attn.q_proj": random(HEADS * SIZE, WIDTH, 2),
            "self_attn.k_proj": random(SHARED * SIZE, WIDTH, 2),
            "self_attn.v_proj": random(SHARED * SIZE, WIDTH),
            "self_attn.o_proj": random(WIDTH, HEADS * SIZE, strength),
            "self_attn.q_norm": torch.zeros(SIZE),
            "self_attn.k_norm": torch.zeros(SIZE),
            "mlp.gate_proj": random(INNER, WIDTH),
            "mlp.up_proj": random(INNER, WIDTH),
            "mlp.down_proj": random(WIDTH, INNER, strength / 4),
            "input_layernorm": torch.zeros(WIDTH),
            "post_attention_layernorm": torch.zeros(WIDTH),
        }
        return {f"{prefix}.{name}.weight": tensor for name, tensor in weights.items()}

    embedding, head = torch.randn(of["vocab_size"], WIDTH, generator=draw), random(of["vocab_size"], WIDTH, 8)
    weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": torch.zeros(WIDTH)}
    for number in range(LAYERS):
        weights |= layer(f"model.layers.{number}", STRENGTH)
    for number in range(LAYERS, EVERY):
        module = f"model.layers.{number}"
        weights |= layer(f"{module}.transformer", OF_MODULES) | {
            f"{module}.enorm.weight": torch.zeros(WIDTH),
            f"{module}.hnorm.weight": torch.zeros(WIDTH),
            f"{module}.eh_proj.weight": torch.cat((torch.eye(WIDTH), random(WIDTH, WIDTH, FED)), 1),
            f"{module}.transformer.shared_head.norm.weight": torch.zeros(WIDTH),
            f"{module}.transformer.shared_head.output.weight": head.clone(),
        }
    write(folder, weights, {name: of[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")} | ABOUT)


_KINDS = ["full_attention", *["sliding_attention"] * 3]
ABOUT: dict[str, Any] = {
    "architectures": ["Step3p5ForCausalLM"],
    "model_type": "step3p5",
    "dtype": "float32",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_nextn_predict_layers": MODULES,
    "num_attention_heads": HEADS,
    "num_attention_groups": SHARED,
    "head_dim": SIZE,
    "attention_other_setting": {
        "attention_type": "sliding_attention",
        "num_attention_heads": HEADS,
        "num_attention_groups": SHARED,
        "head_dim": SIZE,
    },
    "layer_types": _KINDS * (EVERY // len(_KINDS)),
    "sliding_window": WINDOW,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": [10000.0] * EVERY,
    "rope_scaling": None,
    "yarn_only_types": ["full_attention"],
    "partial_rotary_factors": [0.5] * EVERY,
    "swiglu_limits": [0.0] * EVERY,
    "swiglu_limits_shared": [0.0] * EVERY,
    "use_head_wise_attn_gate": False,
    "moe_layers_enum": str(EVERY),
    "moe_num_experts": 2,
    "moe_top_k": 1,
    "moe_intermediate_size": INNER,
    "share_expert_dim": INNER,
    "tie_word_embeddings": False,
}
"""The `config.json` without the vocabulary; no layer has experts."""
