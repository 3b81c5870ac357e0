"""A small model of Qwen4-Exp's kind: the Qwen3-Next of `hybrid_models`, whose attention picks tokens by an index.

Its layers read and write several residual streams, and the first one looks up the last tokens of a text. What it finds
there decides on bits of the next token.
"""

from __future__ import annotations

import re
from math import ceil
from pathlib import Path
from typing import Any

import torch
from head_layouts import write
from hybrid_models import BITS, HIDDEN, LAYERS, Draw, part, parted_weights_of
from sglang_ngrams import is_prime
from sglang_seers import about, joined, see, tower
from torch import Tensor

STREAMS, RANK = 4, 8
"""Residual streams, and the rank of what mixes them."""
GROUP, INDEX, ASKED = 4, 64, 8
"""Tokens whose index keys are one, how wide these are, and the heads that ask."""
GRAM, TABLES, ROW, LEAST, ROWS = 3, 2, 8, 400, 128
"""The longest n-gram, tables for each length, how wide they are and how long at least, and what they are padded to."""
FOUND, BEFORE, FAINT, WINDOW = 8.0, 0.5, 0.02, 4
"""How much what is found counts, what stood before it, and what residual streams do to it, and places of a convolution.
"""
NAME = "Qwen4ExpForConditionalGeneration"


def write_sparse(folder: Path, wide: int) -> None:
    """Write the model and its module; `wide` as of `write_qwen3_next`."""
    draw = Draw(11)
    made = {name: weights for name, weights in parted_weights_of(wide, ()).items() if "layernorm" not in name}
    for layer in (*(f"model.layers.{number}" for number in range(LAYERS + 1)), "mtp.layers.0"):
        for of in ("attn", "mlp"):
            made |= named(f"{layer}.{of}_hyper_connection", mixed(draw, written=True))
    for layer in (f"model.layers.{LAYERS}", "mtp.layers.0"):
        made |= named(f"{layer}.self_attn.indexer", indexer(draw))
    made |= named("model.hyper_connection_mixer", mixed(draw)) | named("mtp.hyper_connection_mixer", mixed(draw))
    made |= named("model.layers.0.ple", looked_up(draw))
    for norm in ("model.norm.weight", "mtp.norm.weight"):
        del made[norm]
    token, before = made.pop("mtp.fc.weight").chunk(2, 1)
    made |= {"mtp.fc_embedding.weight": token, "mtp.fc_hidden.weight": before}
    made["mtp.pre_fc_norm_hidden.weight"] = torch.zeros(STREAMS * HIDDEN)
    of_language = {
        re.sub(r"^model\.", "model.language_model.", name): weights for name, weights in joined(made).items()
    }
    write(folder, of_language | tower(), described(wide))
    see(folder)


def named(of: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{of}.{name}": tensor.bfloat16() for name, tensor in weights.items()}


def mixed(draw: Draw, *, written: bool = False) -> dict[str, Tensor]:
    """What makes one of all streams, nearly their mean after a norm, and says how much is written to each."""
    made = {
        "hc_norm.weight": torch.ones(STREAMS * HIDDEN),
        "input_mix_weight_down.weight": draw.noise(RANK, STREAMS * HIDDEN),
        "input_mix_weight_up.weight": draw.noise(STREAMS * HIDDEN, RANK),
    }
    return made | ({"block_inject_weight.weight": 0.2 * draw.noise(STREAMS, STREAMS * HIDDEN)} if written else {})


def indexer(draw: Draw) -> dict[str, Tensor]:
    """What picks tokens: noise, since all are picked."""
    norms = {f"{of}_layernorm.weight": torch.zeros(INDEX) for of in "qk"}
    return norms | {"index_qk_proj.weight": draw.noise((ASKED + 1) * INDEX, HIDDEN)}


def looked_up(draw: Draw) -> dict[str, Tensor]:
    """What is found of n-grams, which counts for or against bits of the next token."""
    heads = (GRAM - 1) * TABLES
    found, before = torch.zeros(HIDDEN, heads * ROW), torch.zeros(STREAMS, HIDDEN, 1, WINDOW)
    found[part("bits", 0, BITS), 0] = torch.tensor([-FOUND, FOUND])
    before[:, part("bits", 0, BITS)] = BEFORE * draw.noise(STREAMS, 2, 1, WINDOW)
    return {
        "ple_embedding.ngram_embedding.shard_0.weight": draw.noise(rows(heads), ROW).sign(),
        "key_proj.weight": FAINT * draw.noise(STREAMS * HIDDEN, heads * ROW),
        "value_proj.weight": found,
        "conv1d.weight": before.flatten(0, 1),
        **{f"norm_{of}.weight": torch.zeros(STREAMS * HIDDEN) for of in ("key", "query", "conv")},
    }


def rows(heads: int) -> int:
    """How many rows the tables have in all: the next primes, padded."""
    primes, number = list[int](), LEAST - 1
    while len(primes) < heads:
        number += 1
        primes += [number] * is_prime(number)
    return ceil(sum(primes) / ROWS) * ROWS


def described(wide: int) -> dict[str, Any]:
    """The `config.json`."""
    made = about(wide, experts=True)
    text = made["text_config"] | {
        "model_type": "qwen4_exp_text",
        "layer_types": ["linear_attention"] * LAYERS + ["full_attention"],
        "hc_count": STREAMS,
        "hc_lowrank": RANK,
        "ple_layer_ids": [1],
        "ple_embed_dim": (GRAM - 1) * TABLES * ROW,
        "ple_conv_kernel_size": WINDOW,
        "ngram_size": GRAM,
        "heads_per_ngram": TABLES,
        "ngram_vocab_size_base": LEAST,
        "make_ngram_vocab_size_divisible_by": ROWS,
        "split_ngram_parts": 1,
        "indexer_n_heads": ASKED,
        "indexer_kv_heads": 1,
        "indexer_head_dim": INDEX,
        "indexer_budget": 512 * GROUP,
        "indexer_compress_ratio": GROUP,
        "index_share_for_mtp_iteration": True,
    }
    vision = made["vision_config"] | {"model_type": "qwen4_exp"}
    return made | {"architectures": [NAME], "model_type": "qwen4_exp", "text_config": text, "vision_config": vision}
