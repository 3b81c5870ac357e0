"""Models of DeepSeek-V4's kind and of V4.1's, small and of random weights, with drafts among them that draft well."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from head_layouts import read, write
from torch import Tensor

RATIOS = (0, 4, 128, 4)
"""Of each layer how many tokens have an entry of keys beside its window; none has 0, and neither has the module."""
WIDTH, STREAMS, HEADS, QUERY, INNER = 64, 4, 4, 32, 64
HEAD, ROTATED, WINDOW, PAGE = 512, 64, 128, 256
"""What engines have kernels for: the size of a head, what of it turns with the position, windows, and pages."""
INDEX_HEADS, INDEX_HEAD, PICKED = 2, 128, 512
"""Sizes of the indexer, which picks so many entries of every fourth token."""
STRENGTH = 0.1
"""What layers add to the residual streams. Two tokens in three still follow from the last one alone, as far as which
is the most probable: so a module that reads little else is right about as often."""

READ, RANK, PLACES = (1, 3), WIDTH, 3
"""Layers that a draft of blocks reads, counted from 0, and the size of its Markov head and of its blocks."""
QUIET = 0.2
"""How much of a block's own scores is left beside those of its Markov head, which say what follows each token."""

LATER, GRAMS, ENTRIES, COLUMNS, GRAM = 4, 1, 512, 4, 32
"""Layers, which of them reads n-grams, entries of its table, how many a token looks up, and how wide they are."""
LATER_SAYS = {
    "model_type": "deepseek_v41_text",
    "compress_ratios": [0] * (LATER + len(READ)),
    "kv_source_layer_ids": [LATER + len(READ)],
    "num_nextn_predict_layers": len(READ),
    "swiglu_limit": 10.0,
    "expert_dtype": "bf16",
    "engram_layer_ids": [GRAMS],
    "engram_num_embeddings": [ENTRIES],
    "engram_max_ngram_size": 3,
    "engram_n_heads": COLUMNS // 2,
    "engram_head_dim": GRAM,
    "engram_vocab_size": 101,
    "engram_compressed_vocab_size": 1447,
    "engram_pad_token_id": 0,
}
"""What `config.json` says of such a model's text beside V4's keys. No layer is the source of compressed rows. The
compressed vocabulary has the examples' tokens that differ once vLLM has normalised them.
"""


@dataclass(frozen=True)
class Sizes:
    """Those for which an engine may have kernels of other sizes, and which several ranks may share out.

    Attributes:
        experts: how many a layer has.
        chosen: how many a token has.
        output: O's low rank, of each group of heads.
        groups: of heads, whose outputs are projected apart.

    """

    experts: int = 2
    chosen: int = 1
    output: int = 16
    groups: int = 2


SMALL = Sizes()


def write_compressed(
    folder: Path, streams: int = STREAMS, *, blocks: bool = False, sizes: Sizes = SMALL, **said: Any
) -> None:
    """Write target and module into one folder, as they are published, with so many residual streams.

    With `blocks` a draft that fills in blocks stands in the place of the module. `said` are keys of `config.json`.
    """
    of, random = read("target")[1], Weights(streams, sizes)
    weights = random.ends(of["vocab_size"])
    weights |= named("hc_head_", random.mixed(streams, 1))
    for number, ratio in enumerate(RATIOS):
        weights |= named(f"layers.{number}.", random.layer(ratio, STRENGTH))
    weights |= named("mtp.", random.stages(weights) if blocks else random.module())
    write(folder, weights, about(of, streams, sizes) | (BLOCKS if blocks else {}) | said)


def write_later(folder: Path, sizes: Sizes) -> None:
    """Write a model of V4.1's kind with a draft of blocks. Layers see windows alone, and one reads n-grams, too."""
    of, random = read("target")[1], Weights(STREAMS, sizes)
    weights = random.ends(of["vocab_size"])
    for number in range(LATER):
        weights |= named(f"layers.{number}.", random.layer(0, STRENGTH))
    grams = random.lookups(ENTRIES, GRAM, COLUMNS, STRENGTH)
    grams["embed.scale"] = grams["embed.scale"].view(torch.uint8)
    weights |= named(f"layers.{GRAMS}.engram.", grams)
    weights |= {f"image_{part}": torch.zeros(WIDTH) for part in ("start", "newline", "end")}
    stages = without_heads(random.stages(weights))
    words = {"markov_w1": "embed", "markov_w2": "head"}
    for name, of_draft in stages.items():
        weights["mtp." + ".".join(words.get(part, part) for part in name.split("."))] = of_draft
    top = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "torch_dtype": "bfloat16"}
    text = {name: value for name, value in about(of, STREAMS, sizes).items() if name not in top}
    top |= {"text_config": text | BLOCKS | LATER_SAYS, "vision_config": {"num_hidden_layers": 1}}
    write(folder, weights, top)


def named(before: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights, with more before their names."""
    return {f"{before}{name}": of for name, of in weights.items()}


def without_heads(stages: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a draft's stages for V4.1, whose streams are collapsed by what the part before has made of them."""
    return {name: of for name, of in stages.items() if "hc_head" not in name}


class Weights:
    """Random weights of parts of a model with so many residual streams, by the names that they have in a part."""

    def __init__(self, streams: int, sizes: Sizes) -> None:
        self.streams, self.sizes, self.source = streams, sizes, torch.Generator().manual_seed(1)

    def matrix(self, rows: int, columns: int, strength: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=self.source) * strength / math.sqrt(columns)

    def ends(self, vocabulary: int) -> dict[str, Tensor]:
        """What stands before all layers, and behind them."""
        embedding = torch.randn(vocabulary, WIDTH, generator=self.source)
        head = self.matrix(vocabulary, WIDTH, 8)
        return {"embed.weight": embedding, "head.weight": head, "norm.weight": torch.ones(WIDTH)}

    def mixed(self, rows: int, scales: int) -> dict[str, Tensor]:
        """How residual streams are mixed."""
        return {
            "fn": self.matrix(rows, self.streams * WIDTH),
            "base": torch.randn(rows, generator=self.source) / 4,
            "scale": torch.full((scales,), 0.25),
        }

    def compressor(self, ratio: int, head: int) -> dict[str, Tensor]:
        """What makes an entry of so many tokens."""
        width = head * (2 if ratio == 4 else 1)
        return {
            "wkv.weight": self.matrix(width, WIDTH),
            "wgate.weight": self.matrix(width, WIDTH),
            "ape": torch.randn(ratio, width, generator=self.source),
            "norm.weight": torch.ones(head),
        }

    def layer(self, ratio: int, strength: float) -> dict[str, Tensor]:
        """A layer with entries of so many tokens, none of 0."""
        groups = self.sizes.groups
        weights = {
            "attn.wq_a.weight": self.matrix(QUERY, WIDTH),
            "attn.q_norm.weight": torch.ones(QUERY),
            "attn.wq_b.weight": self.matrix(HEADS * HEAD, QUERY),
            "attn.wkv.weight": self.matrix(HEAD, WIDTH),
            "attn.kv_norm.weight": torch.ones(HEAD),
            "attn.attn_sink": torch.randn(HEADS, generator=self.source),
            "attn.wo_a.weight": self.matrix(groups * self.sizes.output, HEADS * HEAD // groups),
            "attn.wo_b.weight": self.matrix(WIDTH, groups * self.sizes.output, strength),
            "attn_norm.weight": torch.ones(WIDTH),
            "ffn_norm.weight": torch.ones(WIDTH),
            "ffn.gate.weight": self.matrix(self.sizes.experts, WIDTH),
            "ffn.gate.bias": torch.zeros(self.sizes.experts),
        }
        if ratio:
            weights |= named("attn.compressor.", self.compressor(ratio, HEAD))
        if ratio == 4:
            weights |= named("attn.indexer.compressor.", self.compressor(ratio, INDEX_HEAD))
            weights["attn.indexer.wq_b.weight"] = self.matrix(INDEX_HEADS * INDEX_HEAD, QUERY)
            weights["attn.indexer.weights_proj.weight"] = self.matrix(INDEX_HEADS, WIDTH)
        for network in (*(f"experts.{expert}" for expert in range(self.sizes.experts)), "shared_experts"):
            weights[f"ffn.{network}.w1.weight"] = self.matrix(INNER, WIDTH)
            weights[f"ffn.{network}.w3.weight"] = self.matrix(INNER, WIDTH)
            weights[f"ffn.{network}.w2.weight"] = self.matrix(WIDTH, INNER, strength / 4)
        for part in ("attn", "ffn"):
            weights |= named(f"hc_{part}_", self.mixed((2 + self.streams) * self.streams, 3))
        return weights

    def lookups(self, rows: int, width: int, columns: int, strength: float) -> dict[str, Tensor]:
        """Tables of n-grams in 8 bits, of so many rows in all, and what is made of the rows that a text has."""
        entries = torch.randn(rows, width, generator=self.source)
        return {
            "embed.weight": entries.to(torch.float8_e4m3fn),
            "embed.scale": torch.ones(rows, width // 32).to(torch.float8_e8m0fnu),
            "wkv.weight": self.matrix((self.streams + 1) * WIDTH, columns * width, strength),
            "q_weight": torch.ones(self.streams, WIDTH),
            "k_weight": torch.ones(self.streams, WIDTH),
        }

    def module(self) -> dict[str, Tensor]:
        """A module of multi-token prediction."""
        made = self.layer(0, STRENGTH / 2) | named("hc_head_", self.mixed(self.streams, 1))
        made |= {f"{name}.weight": torch.ones(WIDTH) for name in ("enorm", "hnorm", "norm")}
        made |= {"e_proj.weight": torch.eye(WIDTH), "h_proj.weight": self.matrix(WIDTH, WIDTH, STRENGTH)}
        return named("0.", made)

    def stages(self, ends: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A draft of blocks for a target with these `ends`."""
        embedding, head = ends["embed.weight"], ends["head.weight"]
        last, made = f"{len(READ) - 1}.", dict[str, Tensor]()
        for number in range(len(READ)):
            made |= named(f"{number}.", self.layer(0, STRENGTH))
        made |= named(f"{last}hc_head_", self.mixed(self.streams, 1))
        markov = {"markov_w1": embedding / embedding.square().mean(1, keepdim=True).sqrt(), "markov_w2": head.clone()}
        return made | {
            "0.main_proj.weight": self.matrix(WIDTH, len(READ) * WIDTH),
            "0.main_norm.weight": torch.ones(WIDTH),
            f"{last}norm.weight": torch.full((WIDTH,), QUIET),
            **{f"{last}markov_head.{name}.weight": of for name, of in markov.items()},
        }


BLOCKS = {
    "dspark_block_size": PLACES,
    "dspark_markov_rank": RANK,
    "dspark_noise_token_id": 1,
    "dspark_target_layer_ids": list(READ),
}
"""What `config.json` says of such a draft."""


def about(of: dict[str, Any], streams: int, sizes: Sizes) -> dict[str, Any]:
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
        "o_groups": sizes.groups,
        "o_lora_rank": sizes.output,
        "index_n_heads": INDEX_HEADS,
        "index_head_dim": INDEX_HEAD,
        "index_topk": PICKED,
        "hc_mult": streams,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 4,
        "moe_intermediate_size": INNER,
        "n_routed_experts": sizes.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": sizes.chosen,
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
