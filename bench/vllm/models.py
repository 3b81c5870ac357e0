"""The models of the benchmark, made on the spot: models.py OUT [--size SIZE]

Random Llamas in which the next token follows from the last one: `lm_head` has the embedding of a token as the row of
its successor, and what the layers add is small. A draft knows the successors of seven tokens in ten: a chain of three
drafts has an accepted length of about 2.5, and rounding decides nothing. Texts repeat after 16 tokens, which is what
drafts looked up in the text find.

* target: 8 layers, 2048 wide, V = 32000, bf16.
* draft: 2 layers, 1024 wide.
* eagle: a head of one layer, as wide as the target, in vLLM's layout, with an embedding of its own.
* eagle3: a head of one layer that reads three layers of the target, and scores the tokens that texts are made of.

With --size tiny they are small, and float32. With --size 8b the target has the sizes of Llama-3.1-8B, and the draft
model those of Llama-3.2-1B. The first tokens follow each other alone, a quarter of them or 32768, and common.json has
these: the map of a draft that scores a part.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

KNOWN = 0.7
COMMON = {"tiny": 256, "small": 8192, "8b": 32768}
"""The first tokens of the vocabulary, of which texts are."""
CYCLE = 16
"""Tokens after which a text repeats."""
SHARP = 2.0
"""What queries and keys of the EAGLE3 head are scaled by, so that a token reads itself."""
SMALL = 0.002
"""Deviation of the weights that add to the residual stream; of all others it is ten times that."""
Weights = dict[str, Tensor]


SIZES = {
    "tiny": {
        "target": (256, 512, 4, 4, 2, 1000),
        "draft": (128, 256, 1, 2, 2, 1000),
        "eagle": (256, 512, 1, 4, 2, 1000),
        "eagle3": (256, 512, 1, 4, 2, 1000),
    },
    "small": {
        "target": (2048, 8192, 8, 16, 8, 32000),
        "draft": (1024, 4096, 2, 8, 8, 32000),
        "eagle": (2048, 8192, 1, 16, 8, 32000),
        "eagle3": (2048, 8192, 1, 16, 8, 32000),
    },
    "8b": {
        "target": (4096, 14336, 32, 32, 8, 128256),
        "draft": (2048, 8192, 16, 32, 8, 128256),
        "eagle": (4096, 14336, 1, 32, 8, 128256),
        "eagle3": (4096, 14336, 1, 32, 8, 128256),
    },
}


def sizes(size: str) -> dict[str, dict[str, int]]:
    """Width, inner width, layers, heads, heads of keys and values of each model, and V."""
    names = ("width", "inner", "layers", "heads", "kv_heads", "vocab")
    return {name: dict(zip(names, row, strict=True)) for name, row in SIZES[size].items()}


def config(size: dict[str, int], dtype: str, architecture: str) -> dict[str, Any]:
    """A config.json."""
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": size["width"],
        "intermediate_size": size["inner"],
        "num_hidden_layers": size["layers"],
        "num_attention_heads": size["heads"],
        "num_key_value_heads": size["kv_heads"],
        "head_dim": size["width"] // size["heads"],
        "vocab_size": size["vocab"],
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def layer(size: dict[str, int], prefix: str, device: str) -> Weights:
    """One decoder layer."""
    width, inner = size["width"], size["inner"]
    keys = size["kv_heads"] * width // size["heads"]
    shapes = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    adds = ("o_proj", "down_proj")
    made = {
        f"{prefix}{name}.weight": torch.randn(shape, device=device) * SMALL * (1 if name.endswith(adds) else 10)
        for name, shape in shapes.items()
    }
    norms = ("input_layernorm", "post_attention_layernorm")
    return made | {f"{prefix}{name}.weight": torch.ones(width, device=device) for name in norms}


def language_model(size: dict[str, int], successors: Tensor) -> Weights:
    """A Llama after whose token t comes successors[t], i64[V]."""
    device = str(successors.device)
    embedding = torch.randn(size["vocab"], size["width"], device=device)
    head = torch.zeros_like(embedding).index_add_(0, successors, embedding)
    made = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    made["model.norm.weight"] = torch.ones(size["width"], device=device)
    for number in range(size["layers"]):
        made |= layer(size, f"model.layers.{number}.", device)
    return made


def eagle_head(size: dict[str, int], embedding: Tensor, known: Tensor) -> Weights:
    """A head that passes its token's embedding on, that of another token where `known` bool[V] is false."""
    width, device = size["width"], str(embedding.device)
    made = {name: value for name, value in layer(size, "layers.0.", device).items() if "input_layernorm" not in name}
    passed = torch.eye(width, device=device)
    made["fc.weight"] = torch.cat([passed, torch.randn(width, width, device=device) * SMALL], dim=1)
    made["embed_tokens.weight"] = torch.where(known[:, None], embedding, embedding.roll(1, 0))
    return made


def eagle3_head(size: dict[str, int], embedding: Tensor, successors: Tensor, tokens: Tensor) -> Weights:
    """A head whose layer reads the embedding of its own token, and scores `tokens` i64[D] by whom they follow.

    A row attends to itself, since a query and a key of the same token have the largest product. Its value is the part
    of its embedding that all heads of keys hold, and a token's row of the head is that part of its predecessor's.
    """
    width, device = size["width"], str(embedding.device)
    part, wide = size["kv_heads"] * width // size["heads"], width // size["heads"]
    made = layer(size, "midlayer.", device)
    read = torch.zeros(part, 2 * width, device=device)
    read[:, :part] = torch.eye(part, device=device)
    group = size["heads"] // size["kv_heads"]
    shared = read.view(size["kv_heads"], wide, -1).repeat_interleave(group, 0).view(-1, 2 * width)
    written = torch.zeros(width, width, device=device)
    written[:part].view(part, size["kv_heads"], group, wide)[:, :, 0] = torch.eye(part, device=device).view(
        part, size["kv_heads"], wide
    )
    made["midlayer.self_attn.q_proj.weight"] = SHARP * shared
    made["midlayer.self_attn.k_proj.weight"] = SHARP * read
    made["midlayer.self_attn.v_proj.weight"] = read
    made["midlayer.self_attn.o_proj.weight"] = written
    made |= {name: torch.ones(width, device=device) for name in ("midlayer.hidden_norm.weight", "norm.weight")}
    made["fc.weight"] = torch.randn(width, 3 * width, device=device) * SMALL
    followed = torch.zeros_like(embedding).index_add_(0, successors, embedding)[tokens]
    followed[:, part:] = 0
    made["lm_head.weight"] = followed
    return made


def save(folder: Path, weights: Weights, about: dict[str, Any]) -> None:
    """Write a model."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = getattr(torch, about["dtype"])
    tensors = {name: value.to(dtype) if value.is_floating_point() else value for name, value in weights.items()}
    save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(about))


def configs(size: str) -> dict[str, dict[str, Any]]:
    """The config.json of each model."""
    dtype, rows = "float32" if size == "tiny" else "bfloat16", sizes(size)
    names = {"eagle": "EagleLlamaForCausalLM", "eagle3": "Eagle3LlamaForCausalLM"}
    made = {name: config(row, dtype, names.get(name, "LlamaForCausalLM")) for name, row in rows.items()}
    layers = rows["target"]["layers"]
    made["eagle3"] |= {
        "draft_vocab_size": COMMON[size],
        "eagle_aux_hidden_state_layer_ids": [1, max(1, layers // 2), layers - 1],
    }
    return made


def write_map(folder: Path, size: str) -> None:
    """The file of the tokens that texts are made of."""
    (folder / "common.json").write_text(json.dumps(list(range(COMMON[size]))))


def follow(vocab: int, first: int) -> Tensor:
    """Whom each token is followed by, i64[V]: the first tokens are circles of `CYCLE`, all others follow each other."""
    circles = torch.randperm(first).view(-1, CYCLE)
    successors = torch.empty(vocab, dtype=torch.int64)
    successors[circles] = circles.roll(-1, 1)
    successors[first:] = first + torch.randperm(vocab - first)
    return successors


def main(out: Path, size_name: str) -> None:
    """Make all models."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(3)
    size, first, about = sizes(size_name), COMMON[size_name], configs(size_name)
    vocab = size["target"]["vocab"]
    successors = follow(vocab, first).to(device)
    known = (torch.rand(vocab) < KNOWN).to(device)
    target = language_model(size["target"], successors)
    embedding = target["model.embed_tokens.weight"]
    drafted = torch.where(known, successors, (successors + 1) % vocab)
    save(out / "target", target, about["target"])
    save(out / "draft", language_model(size["draft"], drafted), about["draft"])
    save(out / "eagle", eagle_head(size["eagle"], embedding, known), about["eagle"])
    tokens = torch.arange(first, device=device).flip(0)
    head = eagle3_head(size["eagle3"], embedding, drafted, tokens)
    save(out / "eagle3", head | {"d2t": tokens - torch.arange(first, device=device)}, about["eagle3"])
    write_map(out, size_name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=SIZES, default="small")
    given = parser.parse_args()
    main(given.out, given.size)
