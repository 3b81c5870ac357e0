"""A model of DeepSeek-V4.1's kind, small and of random weights, with a draft that fills in blocks among them.

Beside DeepSeek-V4 it has layers whose keys are compressed less and shared by others, layers that look up the last
tokens of a text (Engram), and a tower that looks at pictures.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch
from compressed_models import (
    BLOCKS,
    HEAD,
    INDEX_HEAD,
    INDEX_HEADS,
    QUERY,
    SMALL,
    STREAMS,
    WIDTH,
    Sizes,
    Weights,
    about,
    named,
    without_heads,
)
from head_layouts import CONFIG, read, write
from sglang_seers import name_places
from sglang_vision import MERGED, MOST, PATCH
from tokenizers import Regex, Tokenizer, normalizers
from torch import Tensor

RATIOS = (4, 128, 2, 2, 1, 1, 0)
"""Of each layer how many tokens have an entry of keys beside its window; none has 0."""
SOURCES, INDEXED, CANDIDATES = (2, 4), (2, 4, 5), 4
"""Layers that make entries of 1 and 2 tokens, layers that choose among them, and the one that first chooses blocks."""
LOOKED_UP, GRAM, TABLES, ROW, LEAST = (1, 3), 3, 2, 32, 400
"""Layers that look n-grams up, the longest of these, tables for each length, how wide they are and how long at least.
"""
READ = (3, 6)
"""Layers that the draft reads."""
EYE, SEEN = 32, 255
"""How wide the tower is, and the token that stands for a picture."""
STRENGTH, OF_GRAMS = 0.1, 0.25
"""What layers add to the residual streams, and what n-grams do."""


def write_ngrams(folder: Path, sizes: Sizes = SMALL) -> None:
    """Write target and draft into one folder, as they are published."""
    of, random = read("target")[1], NgramWeights(STREAMS, sizes)
    weights = random.ends(of["vocab_size"])
    rows = rows_of_tables()
    for number, ratio in enumerate(RATIOS):
        weights |= named(f"layers.{number}.", random.layer(ratio, STRENGTH))
        if ratio in (1, 2):
            weights |= named(f"layers.{number}.attn.", random.sources(number, ratio))
        if number in LOOKED_UP:
            tables = random.lookups(rows[LOOKED_UP.index(number)], ROW, (GRAM - 1) * TABLES, OF_GRAMS)
            weights |= named(f"layers.{number}.engram.", tables)
    weights |= named("mtp.", without_heads(random.stages(weights)))
    weights |= named("vision.", random.tower()) | random.joined_to_texts()
    config = described(of, sizes, rows)
    write(folder, weights, config)
    name_places(folder)
    config["text_config"]["engram_compressed_vocab_size"] = folded(folder)
    (folder / CONFIG).write_text(json.dumps(config))


class NgramWeights(Weights):
    """The same for parts that such models have otherwise."""

    def layer(self, ratio: int, strength: float) -> dict[str, Tensor]:
        """A layer, without what makes entries of 1 and 2 tokens."""
        biased = {"ffn.gate.bias_vl": torch.randn(self.sizes.experts, generator=self.source)}
        return super().layer(0 if ratio in (1, 2) else ratio, strength) | biased

    def sources(self, number: int, ratio: int) -> dict[str, Tensor]:
        """What makes entries, if the layer does, and what chooses among them, if it does."""
        made = dict[str, Tensor]()
        if number in SOURCES:
            made |= {"compressor.wkv.weight": self.matrix(HEAD, WIDTH), "compressor.norm.weight": torch.ones(HEAD)}
            if ratio > 1:
                made["compressor.wgate.weight"] = self.matrix(HEAD, WIDTH)
            made["indexer.wk.weight"] = self.matrix(INDEX_HEAD, HEAD)
            made["indexer.k_norm.weight"] = torch.ones(INDEX_HEAD)
        if number in INDEXED:
            made["indexer.wq_b.weight"] = self.matrix(INDEX_HEADS * INDEX_HEAD, QUERY)
            made["indexer.weights_proj.weight"] = self.matrix(INDEX_HEADS, WIDTH)
        return made

    def tower(self) -> dict[str, Tensor]:
        """What looks at patches of pictures: a layer of attention."""
        made = {"patch_embed.proj.weight": self.matrix(EYE, 3 * PATCH**2), "patch_embed.proj.bias": torch.zeros(EYE)}
        for name, rows in {"wqkv": 3 * EYE, "wo": EYE}.items():
            made[f"blocks.0.attn.{name}.weight"] = self.matrix(rows, EYE)
            made[f"blocks.0.attn.{name}.bias"] = torch.zeros(rows)
        made["blocks.0.mlp.w1.weight"] = self.matrix(4 * EYE, EYE)
        made["blocks.0.mlp.w2.weight"] = self.matrix(EYE, 2 * EYE)
        return made | {f"{norm}.weight": torch.ones(EYE) for norm in ("blocks.0.norm1", "blocks.0.norm2", "norm")}

    def joined_to_texts(self) -> dict[str, Tensor]:
        """What makes rows of a text of those that the tower makes, and the rows around them."""
        made = {f"image_{row}": torch.randn(WIDTH, generator=self.source) for row in ("start", "end", "newline")}
        for name, columns in {"w1": MERGED**2 * EYE, "w2": WIDTH}.items():
            made |= {f"aligner.{name}.weight": self.matrix(WIDTH, columns), f"aligner.{name}.bias": torch.zeros(WIDTH)}
        return made


def rows_of_tables() -> list[int]:
    """How many rows the tables of each layer have that looks n-grams up: primes, none of which two tables share."""
    seen, rows = set[int](), list[int]()
    for _ in LOOKED_UP:
        before = sum(seen)
        for _ in range(GRAM - 1):
            length = LEAST - 1
            for _ in range(TABLES):
                length = next(n for n in itertools.count(length + 1) if n not in seen and is_prime(n))
                seen.add(length)
        rows.append(sum(seen) - before)
    return rows


def is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))


def folded(folder: Path) -> int:
    """How many tokens of a model are left that differ in more than case, accents, and spaces."""
    blank = "\ue000"
    fold = normalizers.Sequence(
        [
            *(normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()),
            *(normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex(r"^ $"), blank)),
            *(normalizers.Strip(), normalizers.Replace(blank, " ")),
        ]
    )
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [tokens.decode([token], skip_special_tokens=False) for token in range(tokens.get_vocab_size())]
    parts = (text if "\ufffd" not in text else None for text in texts)
    return len({(token, "") if part is None else fold.normalize_str(part) or part for token, part in enumerate(parts)})


def described(of: dict[str, Any], sizes: Sizes, rows: list[int]) -> dict[str, Any]:
    """The `config.json` of a model whose layers look up in tables of so many rows."""
    base = about(of, STREAMS, sizes) | BLOCKS
    own = ("architectures", "model_type", "num_hidden_layers", "compress_ratios", "bos_token_id", "eos_token_id")
    text = {name: value for name, value in base.items() if name not in own}
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "torch_dtype": "float32",
        "bos_token_id": of["bos_token_id"],
        "eos_token_id": of["eos_token_id"],
        "image_token_id": SEEN,
        "vision_config": {
            "model_type": "deepseek_v41_vision",
            "num_hidden_layers": 1,
            "hidden_size": EYE,
            "num_attention_heads": 2,
            "intermediate_size": 2 * EYE,
            "patch_size": PATCH,
            "rope_theta": 10000.0,
            "downsample_ratio": MERGED,
            "max_image_tokens": MOST * (MOST + 1) + 2,
            "min_pixels": PATCH**2,
            "max_wh_ratio": MOST + 1,
        },
        "text_config": text
        | {
            "model_type": "deepseek_v41_text",
            "num_hidden_layers": len(RATIOS),
            "compress_ratios": [*RATIOS, 0],
            "kv_source_layer_ids": list(SOURCES),
            "index_source_layer_ids": list(INDEXED),
            "candidate_source_layer_id": CANDIDATES,
            "candidate_topk_blocks": 64,
            "candidate_block_size": 8,
            "dspark_target_layer_ids": list(READ),
            "engram_layer_ids": list(LOOKED_UP),
            "engram_num_embeddings": rows,
            "engram_max_ngram_size": GRAM,
            "engram_vocab_size": LEAST,
            "engram_n_heads": TABLES,
            "engram_head_dim": ROW,
            "engram_pad_token_id": 2,
        },
    }
