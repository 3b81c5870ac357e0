"""Write a random Qwen3 target and a random, narrower Qwen3 draft: a second architecture, for demos and tests.

Usage: python examples/random_models.py DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

TOKENIZER = Path(__file__).parent / "models" / "target"


def write(directory: Path, *, hidden_size: int, layers: int, vocab_size: int, seed: int) -> None:
    """Write one random model as a Hugging Face directory.

    Args:
        directory: where to.
        hidden_size: width of the residual stream.
        layers: decoder layers.
        vocab_size: entries of the vocabulary; the tokenizer is that of the trained target.
        seed: of the weights.

    """
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    config.dtype = torch.float32
    Qwen3ForCausalLM(config).save_pretrained(directory)


def main(root: Path) -> None:
    """Write target and draft below ``root``."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    write(root / "target", hidden_size=96, layers=3, vocab_size=len(tokenizer), seed=0)
    write(root / "draft", hidden_size=64, layers=1, vocab_size=len(tokenizer), seed=1)
    for model in ("target", "draft"):
        tokenizer.save_pretrained(root / model)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
