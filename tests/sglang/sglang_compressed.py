"""A model of DeepSeek-V4's kind, small and of random weights, whose module of multi-token prediction drafts well."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from head_layouts import read, write
from torch import Tensor

RATIOS = (0, 4, 128, 4)
"""Of each layer how many tokens have an entry of keys beside its window; none has 0, and neither has the module."""
EXPERTS = 2
WIDTH, STREAMS, HEADS, QUERY, GROUPS, OUTPUT, INNER = 64, 4, 4, 32, 2, 16, 64
HEAD, ROTATED, WINDOW, PAGE = 512, 64, 128, 256
"""What SGLang has kernels for: the size of a head, what of it turns with the position, windows, and pages."""
INDEX_HEADS, INDEX_HEAD, PICKED = 2, 128, 512
"""Sizes of the indexer, which picks so many entries of every fourth token."""
STRENGTH = 0.1
"""What layers add to the residual streams. Two tokens in three still follow from the last one alone, as far as which
is the most probable: so a module that reads little else is right about as often."""


READ, RANK, PLACES = (1, 3), WIDTH, 3
"""Layers that a draft of blocks reads, counted from 0, and the size of its Markov head and of its blocks."""
QUIET = 0.2
"""How much of a block's own scores is left beside those of its Markov head, which say what follows each token."""


def write_compressed(folder: Path, streams: int = STREAMS, *, blocks: bool = False) -> None:
    """Write target and module into one folder, as they are published, with so many residual streams.

    With `blocks` a draft that fills in blocks stands in the place of the module.
    """
    of = read("target")[1]
    draw = torch.Generator().manual_seed(1)

    def random(rows: int, columns: int, strength: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=draw) * strength / math.sqrt(columns)

    def compressor(ratio: int, head: int) -> dict[str, Tensor]:
        width = head * (2 if ratio == 4 else 1)
        return {
            "wkv.weight": random(width, WIDTH),
            "wgate.weight": random(width, WIDTH),
            "ape": torch.randn(ratio, width, generator=draw),
            "norm.weight": torch.ones(head),
        }

    def layer(ratio: int, strength: float) -> dict[str, Tensor]:
        weights = {
            "attn.wq_a.weight": random(QUERY, WIDTH),
            "attn.q_norm.weight": torch.ones(QUERY),
            "attn.wq_b.weight": random(HEADS * HEAD, QUERY),
            "attn.wkv.weight": random(HEAD, WIDTH),
            "attn.kv_norm.weight": torch.ones(HEAD),
            "attn.attn_sink": torch.randn(HEADS, generator=draw),
            "attn.wo_a.weight": random(GROUPS * OUTPUT, HEADS * HEAD // GROUPS),
            "attn.wo_b.weight": random(WIDTH, GROUPS * OUTPUT, strength),
            "attn_norm.weight": torch.ones(WIDTH),
            "ffn_norm.weight": torch.ones(WIDTH),
            "ffn.gate.weight": random(EXPERTS, WIDTH),
            "ffn.gate.bias": torch.zeros(EXPERTS),
        }
        if ratio:
            weights |= {f"attn.compressor.{name}": of for name, of in compressor(ratio, HEAD).items()}
        if ratio == 4:
            weights |= {f"attn.indexer.compressor.{name}": of for name, of in compressor(ratio, INDEX_HEAD).items()}
            weights["attn.indexer.wq_b.weight"] = random(INDEX_HEADS * INDEX_HEAD, QUERY)
            weights["attn.indexer.weights_proj.weight"] = random(INDEX_HEADS, WIDTH)
        for network in (*(f"experts.{expert}" for expert in range(EXPERTS)), "shared_experts"):
            weights[f"ffn.{network}.w1.weight"] = random(INNER, WIDTH)
            weights[f"ffn.{network}.w3.weight"] = random(INNER, WIDTH)
            weights[f"ffn.{network}.w2.weight"] = random(WIDTH, INNER, strength / 4)
        for part in ("attn", "ffn"):
            weights |= {f"hc_{part}_{name}": of for name, of in mixed((2 + streams) * streams, 3).items()}
        return weights

    def module() -> dict[str, Tensor]:
        made = layer(0, STRENGTH / 2) | {f"hc_head_{name}": of for name, of in mixed(streams, 1).items()}
        made |= {f"{name}.weight": torch.ones(WIDTH) for name in ("enorm", "hnorm", "norm")}
        made |= {"e_proj.weight": torch.eye(WIDTH), "h_proj.weight": random(WIDTH, WIDTH, STRENGTH)}
        return {f"0.{name}": of for name, of in made.items()}

    def stages() -> dict[str, Tensor]:
        made = {f"{number}.{name}": of for number in range(len(READ)) for name, of in layer(0, STRENGTH).items()}
        last = {f"hc_head_{name}": of for name, of in mixed(streams, 1).items()}
        made |= {f"{len(READ) - 1}.{name}": of for name, of in last.items()}
        markov = {"embed": embedding / embedding.square().mean(1, keepdim=True).sqrt(), "head": head.clone()}
        return made | {
            "0.main_proj.weight": random(WIDTH, len(READ) * WIDTH),
            "0.main_norm.weight": torch.ones(WIDTH),
            f"{len(READ) - 1}.norm.weight": torch.full((WIDTH,), QUIET),
            **{f"{len(READ) - 1}.markov_head.{name}.weight": of for name, of in markov.items()},
        }

    def mixed(rows: int, scales: int) -> dict[str, Tensor]:
        return {
            "fn": random(rows, streams * WIDTH),
            "base": torch.randn(rows, generator=draw) / 4,
            "scale": torch.full((scales,), 0.25),
        }

    embedding, head = torch.randn(of["vocab_size"], WIDTH, generator=draw), random(of["vocab_size"], WIDTH, 8)
    weights = {"embed.weight": embedding, "head.weight": head, "norm.weight": torch.ones(WIDTH)}
    weights |= {f"hc_head_{name}": of for name, of in mixed(streams, 1).items()}
    for number, ratio in enumerate(RATIOS):
        weights |= {f"layers.{number}.{name}": of for name, of in layer(ratio, STRENGTH).items()}
    weights |= {f"mtp.{name}": of for name, of in (stages() if blocks else module()).items()}
    write(folder, weights, about(of, streams) | (BLOCKS if blocks else {}))


BLOCKS = {
    "dspark_block_size": PLACES,
    "dspark_markov_rank": RANK,
    "dspark_noise_token_id": 1,
    "dspark_target_layer_ids": list(READ),
}
"""What `config.json` says of such a draft."""


def about(of: dict[str, Any], streams: int) -> dict[str, Any]:
    """The `config.json`, with the vocabulary of another model."""
    scaling = {"type": "yarn", "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}
    return {name: of[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")} | {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "torch_dtype": "float32",
        "hidden_size": WIDTH,
        "hidden_act": "silu",
        "num_hidden_layers": len(RATIOS),
        "num_nextn_predict_layers": 1,
        "compress_ratios": [*RATIOS, 0],
        "compress_rope_theta": 40000.0,
        "sliding_window": WINDOW,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "qk_rope_head_dim": ROTATED,
        "q_lora_rank": QUERY,
        "o_groups": GROUPS,
        "o_lora_rank": OUTPUT,
        "index_n_heads": INDEX_HEADS,
        "index_head_dim": INDEX_HEAD,
        "index_topk": PICKED,
        "hc_mult": streams,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 4,
        "moe_intermediate_size": INNER,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "num_hash_layers": 0,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": scaling | {"beta_fast": 32, "beta_slow": 1},
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
