"""A model of Qwen2-VL's kind and a smaller one that drafts, small and of random weights, and pictures to ask about."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from head_layouts import EXAMPLES
from tokenizers import AddedToken
from transformers import AutoTokenizer, Qwen2VLConfig, Qwen2VLForConditionalGeneration

WORDS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
"""A picture's place in a prompt."""
LAYERS, WIDTH, HEADS, INNER, EYE = 3, 64, 4, 128, 32
PATCH, MERGED, MOST = 4, 2, 6
"""Pixels of a patch's edge, patches of a token's edge, tokens of a picture's edge at most."""
SECTIONS = [2, 3, 3]
"""How many pairs of a head turn with time, height and width."""
STRENGTH, QUIET, APART = 0.25, 0.03, 0.03
"""The size of weights, by what layers are less than the residual stream, and by what part of them a draft's differ.

A draft lacks the first token of a text: were layers louder it would seldom be right. Every other token is another one
where positions are three further, or less.
"""
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
    "patch_size": PATCH,
    "merge_size": MERGED,
    "temporal_patch_size": 2,
    "min_pixels": (PATCH * MERGED) ** 2,
    "max_pixels": (PATCH * MERGED * MOST) ** 2,
}


def write_vision(folder: Path) -> None:
    """Write a target and its draft, `seer` and `guesser`, below a folder."""
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    tokenizer.add_tokens([AddedToken(word, special=True, normalized=False) for word in WORDS])
    tokenizer.pad_token = tokenizer.eos_token
    torch.manual_seed(1)
    model = Qwen2VLForConditionalGeneration(about(tokenizer)).float()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights *= QUIET if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
    write(model, folder / "seer", tokenizer)
    with torch.no_grad():
        for weights in model.parameters():
            weights *= 1 + APART * torch.randn_like(weights)
    write(model, folder / "guesser", tokenizer)


def write(model: Qwen2VLForConditionalGeneration, folder: Path, tokenizer: Any) -> None:
    """Write a model with what prepares its texts and pictures."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))


def about(tokenizer: Any) -> Qwen2VLConfig:
    """The configuration."""
    ids = dict(zip(WORDS, tokenizer.convert_tokens_to_ids(WORDS), strict=True))
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": STRENGTH,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": SECTIONS},
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    eye = {
        "depth": 1, "embed_dim": EYE, "hidden_size": WIDTH, "num_heads": 2, "mlp_ratio": 2, "patch_size": PATCH,
        "spatial_merge_size": MERGED, "in_chans": 3, "initializer_range": STRENGTH,
    }  # fmt: skip
    return Qwen2VLConfig(
        text_config=text, vision_config=eye, vision_start_token_id=ids[WORDS[0]], vision_end_token_id=ids[WORDS[1]],
        image_token_id=ids[WORDS[2]], video_token_id=ids[WORDS[3]], tie_word_embeddings=False,
        architectures=["Qwen2VLForConditionalGeneration"], dtype="float32",
    )  # fmt: skip


def with_pictures(requests: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The same requests, every third of them with a picture, and every ninth with two.

    No two have the same text before a picture: SGLang's own prefill of a draft that sees ends the server where what is
    cached of a prompt ends there.
    """
    made: list[dict[str, Any]] = []
    for number, request in enumerate(requests):
        count = 0 if number % 3 else 1 if number % 9 else 2
        files = [_picture(folder / f"{number}-{place}.png", seed=2 * number + place) for place in range(count)]
        text = "".join(f"{number} {PICTURE}" for _ in files) + request["text"]
        made.append({**request, "text": text, **({"pictures": files} if files else {})})
    return made


def _picture(path: Path, seed: int) -> str:
    """Write a picture that is never square; its file."""
    draw = torch.Generator().manual_seed(seed)
    height, width = (PATCH * MERGED * (edge + 1) for edge in torch.randperm(MOST, generator=draw)[:2].tolist())
    lines = torch.randint(0, 256, (height, 3 * width), dtype=torch.uint8, generator=draw).tolist()
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)  # 8 bits of red, green and blue each
    chunks = (
        (b"IHDR", header),
        (b"IDAT", zlib.compress(b"".join(bytes([0, *line]) for line in lines))),
        (b"IEND", b""),
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks))
    return str(path)


def _chunk(kind: bytes, data: bytes) -> bytes:
    """A part of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
