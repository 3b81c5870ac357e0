"""A small Kimi-Linear: the Qwen3-Next of `hybrid_models` with delta rules whose keys are forgotten one by one (KDA).

Its layer of attention keeps latent rows. It has no module.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from head_layouts import write
from hybrid_models import (
    BIT,
    CODE,
    HEADS,
    HIDDEN,
    INNER,
    LAYERS,
    OPEN,
    QUERIES,
    SIZES,
    SUCCESSOR,
    SUCCESSORS,
    VOCAB,
    WINDOW,
    Draw,
    delta,
    feed_forward,
    part,
    vocabulary,
)
from sglang_files import ON_GPU
from torch import Tensor

KNOWN = 144
"""Entries of a latent row: the code, the successor and the table of a token, and some more."""
LATENT, ROTARY, VALUE = (512, 64, 128) if ON_GPU else (KNOWN, 16, SUCCESSORS)
"""The size of a latent row, of keys that all heads share beside it, and of a head's values; what is more is 0.

FlashAttention 3 has the larger ones alone."""
SHARP = 0.378
"""How much a token attends to itself, before products of queries and keys are divided by a root of their size."""


def forgetful(draw: Draw, layer: int, wide: int) -> dict[str, Tensor]:
    """Return a recurrent layer, which reads nothing behind a token of the table."""
    made = delta(draw, layer, wide, 0.6)
    window = made.window.flatten(1, 2)
    opened, opens = torch.zeros(wide, HIDDEN), torch.zeros(HEADS * wide, wide)
    opened[0, part("bias")], opened[0, part("tabled")], opens[:, 0] = 1, -2, OPEN
    projected = {f"{name}_proj.weight": made.read[:, at].flatten(0, 1) for at, name in enumerate("qkv")}
    return projected | {
        **{f"{name}_conv1d.weight": window[at] for at, name in enumerate("qkv")},
        "b_proj.weight": made.gates[:, 0],
        "f_a_proj.weight": 3 * draw.noise(wide, HIDDEN),
        "f_b_proj.weight": 3 * draw.noise(HEADS * wide, wide),
        "g_a_proj.weight": opened,
        "g_b_proj.weight": opens,
        "A_log": torch.zeros(1, 1, HEADS, 1),
        "dt_bias": torch.full((HEADS * wide,), -6.0),
        "o_norm.weight": torch.ones(wide),
        "o_proj.weight": made.written.flatten(1),
    }


def latent() -> dict[str, Tensor]:
    """Return a layer in which a token attends to itself: heads write its successor, or the bits of its table."""
    queries, rows = torch.zeros(QUERIES, CODE + ROTARY, HIDDEN), torch.zeros(LATENT + ROTARY, HIDDEN)
    begins = {"code": 0, "next": CODE, "table": CODE + SUCCESSORS}
    for name, begin in begins.items():
        rows[begin : begin + SIZES[name], part(name)] = torch.eye(SIZES[name])
    queries[:, :CODE, part("code")] = SHARP * math.sqrt(CODE + ROTARY) * torch.eye(CODE)
    read, written = torch.zeros(QUERIES, CODE + VALUE, LATENT), torch.zeros(HIDDEN, QUERIES, VALUE)
    read[:, :CODE, :CODE] = torch.eye(CODE)
    halves = (("next", "successor", SUCCESSOR), ("table", "bits", BIT))
    for number in range(QUERIES):
        name, wrote, much = halves[2 * number // QUERIES]
        size, begin = SIZES[name], begins[name]
        read[number, CODE : CODE + size, begin : begin + size] = torch.eye(size)
        written[part(wrote), number, :size] = 2.8 * much / QUERIES * torch.eye(size)
    return {
        "q_proj.weight": queries.flatten(0, 1),
        "kv_a_proj_with_mqa.weight": rows,
        "kv_a_layernorm.weight": torch.full((LATENT,), math.sqrt(KNOWN / LATENT)),  # what is not known is 0
        "kv_b_proj.weight": read.flatten(0, 1),
        "o_proj.weight": written.flatten(1),
    }


def write_kimi_linear(folder: Path, wide: int, dtype: str = "bfloat16") -> None:
    """Write the model, for engines that run it in `dtype`: SGLang's gates ask the file for that."""
    draw = Draw(7)
    _, known, scores = vocabulary(draw)
    made = {"model.embed_tokens.weight": known, "lm_head.weight": scores, "model.norm.weight": torch.ones(HIDDEN)}
    for number, mixer in enumerate([*(forgetful(draw, number, wide) for number in range(LAYERS)), latent()]):
        before = f"model.layers.{number}"
        made |= {f"{before}.self_attn.{name}": tensor for name, tensor in mixer.items()}
        made |= {f"{before}.mlp.{name}": tensor for name, tensor in feed_forward(draw, experts=False).items()}
        made |= {
            f"{before}.{name}.weight": torch.ones(HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")
        }
    weights = {name: tensor if name.endswith("A_log") else tensor.bfloat16() for name, tensor in made.items()}
    sizes = {"num_heads": HEADS, "head_dim": wide, "short_conv_kernel_size": WINDOW}
    layers = {"kda_layers": [*range(1, LAYERS + 1)], "full_attn_layers": [LAYERS + 1]}
    write(folder, weights, CONFIG | {"linear_attn_config": sizes | layers, "dtype": dtype})


CONFIG: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS + 1,
    "num_attention_heads": QUERIES,
    "num_key_value_heads": QUERIES,
    "kv_lora_rank": LATENT,
    "q_lora_rank": None,
    "qk_nope_head_dim": CODE,
    "qk_rope_head_dim": ROTARY,
    "v_head_dim": VALUE,
    "mla_use_nope": True,
    "first_k_dense_replace": LAYERS + 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "model_max_length": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
