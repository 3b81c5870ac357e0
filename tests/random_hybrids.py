"""Sizes of small random models that keep a recurrent state, beside those that all models have."""

from __future__ import annotations

from typing import Any

HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "mlp_only_layers": [0, 2, 3],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
    },
    "bamba": {
        "attn_layer_indices": [1, 3],
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_chunk_size": 16,
        "time_step_limit": [0.0, 1000.0],
    },
}
"""Models of four layers, of which the first and the third keep a recurrent state: a gated delta net, and Mamba-2."""

STATES: dict[str, dict[str, Any]] = {
    "qwen3_next": {"kind": "GDN", "heads": 4, "rows": 8, "columns": 8, "groups": 2, "kernel": 4},
    "bamba": {"kind": "Mamba-2", "heads": 8, "rows": 8, "columns": 8, "groups": 1, "kernel": 4},
}
"""What these states are, as configurations say it."""
