"""A model of Gemma 3's kind and one that drafts for it, small and of random weights, whose layers see little."""

from __future__ import annotations

from pathlib import Path

import torch
from head_layouts import EXAMPLES
from sglang_models import write_pair
from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

WINDOW = 12
"""Tokens that most layers see, far less than most texts have."""
LAYERS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
STRENGTH, LOUD, APART = 0.25, 0.8, 0.03
"""The size of weights, what the norms of a layer's results multiply by, and by what part a draft's weights differ.

Every third token is another one where windows are two tokens wider.
"""


def write_windows(folder: Path) -> None:
    """Write a target and its draft, `short` and `shorter`, below a folder."""
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    torch.manual_seed(2)
    config = Gemma3TextConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=len(LAYERS),
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW,
        layer_types=LAYERS, max_position_embeddings=1024, initializer_range=STRENGTH, tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=None, dtype="float32",
        architectures=["Gemma3ForCausalLM"],
    )  # fmt: skip
    model = Gemma3ForCausalLM(config).float()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
                weights += LOUD - 1
        # The head is the embedding: without this, every token would be followed by itself.
        model.model.norm.weight += torch.randint(0, 2, (config.hidden_size,)) * -2.0
    write_pair(model, tokenizer, (folder / "short", folder / "shorter"), APART)
