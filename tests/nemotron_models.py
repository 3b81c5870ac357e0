"""A small Nemotron-H with a module of multi-token prediction: the Qwen3-Next of `hybrid_models`, by state spaces.

A state space forgets as a whole and cannot replace what it has of one class of tokens. So each bit has a head for each
class: a token of that class lets it forget all and stores a bit, all others leave it alone. The gate of what is read
is open for the head of the class that the last token asks for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from head_layouts import write
from hybrid_models import (
    BITS,
    CLASSES,
    CODE,
    HEADS,
    HIDDEN,
    INNER,
    KEYS,
    LAYERS,
    MARK,
    OPEN,
    QUERIES,
    SIZES,
    VOCAB,
    WINDOW,
    Draw,
    attention,
    feed_forward,
    fused,
    part,
    vocabulary,
)
from torch import Tensor

STATE = 16
"""Columns of a matrix."""
SHUT, KEPT = 40.0, 20.0
"""How far a gate closes, and a step in which a head keeps all; nothing is left of either in 16 bits."""
PATTERN, MODULE = "M" * LAYERS + "*-", "*"
"""Layers of the model, and of its module: state spaces, attention, and one that is fed forward."""


def state_space(draw: Draw, layer: int, wide: int) -> dict[str, Tensor]:
    """Return a layer that stores bits of a token by the class of a later one; matrices have `wide` rows."""
    gates, values = torch.zeros(2, HEADS, CLASSES, wide, HIDDEN)
    keys = MARK / 2 * draw.noise(2, HEADS, STATE, HIDDEN)
    steps, written = torch.zeros(HEADS, CLASSES, HIDDEN), torch.zeros(HIDDEN, HEADS, CLASSES, wide)
    keys[..., 0, part("bias")] = MARK
    gates[..., part("tabled")] = -SHUT
    for number in range(HEADS):
        bit = layer * HEADS + number
        gates[number, ..., part("ask", bit, BITS)] = OPEN * torch.eye(CLASSES)[:, None]
        steps[number, :, part("store", bit, BITS)] = KEPT * torch.eye(CLASSES)
        values[number, :, :2, part("value", bit, BITS)] = MARK * torch.eye(2)
        values[number, :, 2:, part("code")] = MARK / 2 * draw.noise(CLASSES, wide - 2, CODE)
        written[part("bits", bit, BITS), number, :, :2] = 0.3 * torch.eye(2)[:, None]
        written[part("spare"), number, :, 2:] = 0.1 * draw.noise(SIZES["spare"], CLASSES, wide - 2)
    rows = [rows.reshape(-1, HIDDEN) for rows in (gates, values, *keys, steps)]
    window = torch.zeros(sum(map(len, rows[1:4])), 1, WINDOW)
    window[..., -1] = 1
    window[: len(rows[1])] = 0
    window[: len(rows[1]), :, -2 - layer] = 1
    return {
        "in_proj.weight": torch.cat(rows),
        "conv1d.weight": window,
        "conv1d.bias": torch.zeros(len(window)),
        "A_log": torch.zeros(HEADS * CLASSES),
        "D": torch.ones(HEADS * CLASSES),
        "dt_bias": torch.full((HEADS * CLASSES,), -KEPT),
        "norm.weight": torch.ones(len(rows[1])),
        "out_proj.weight": written.flatten(1),
    }


def write_nemotron_h(folder: Path, wide: int, dtype: str = "bfloat16") -> None:
    """Write the model and its module, for engines that run it in `dtype`: SGLang's module asks the file for that."""
    draw = Draw(7)
    table, known, scores = vocabulary(draw)
    made = {"backbone.embeddings.weight": known, "lm_head.weight": scores}
    mixers = [*(state_space(draw, number, wide) for number in range(LAYERS)), attention(plain=True)]
    mixers.append(feed_forward(draw, experts=False))
    del mixers[-1]["gate_proj.weight"]
    for number, mixer in enumerate(mixers):
        made |= {f"backbone.layers.{number}.mixer.{name}": tensor for name, tensor in mixer.items()}
    made |= {f"mtp.layers.0.mixer.{name}": tensor for name, tensor in attention(plain=True).items()}
    made["mtp.layers.0.eh_proj.weight"] = fused(draw, table)
    norms = [f"backbone.layers.{number}.norm" for number in range(len(mixers))]
    norms += [f"mtp.layers.0.{name}" for name in ("norm", "enorm", "hnorm", "final_layernorm")]
    made |= {f"{name}.weight": torch.ones(HIDDEN) for name in ("backbone.norm_f", *norms)}
    weights = {name: tensor if name.endswith("A_log") else tensor.bfloat16() for name, tensor in made.items()}
    write(folder, weights, CONFIG | {"mamba_head_dim": wide, "dtype": dtype})


CONFIG: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": len(PATTERN),
    "hybrid_override_pattern": PATTERN,
    "num_attention_heads": QUERIES,
    "num_key_value_heads": KEYS,
    "head_dim": CODE,
    "mamba_num_heads": HEADS * CLASSES,
    "n_groups": HEADS,
    "mamba_n_groups": HEADS,
    "ssm_state_size": STATE,
    "conv_kernel": WINDOW,
    "chunk_size": 64,
    "time_step_min": 0.0,
    "use_conv_bias": True,
    "mamba_hidden_act": "silu",
    "mlp_hidden_act": "relu2",
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 1,
    "mtp_hybrid_override_pattern": MODULE,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
