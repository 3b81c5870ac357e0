"""Models of gpt-oss's kind, small and of random weights, whose windows SGLang keeps in a KV pool of their own."""

from __future__ import annotations

from pathlib import Path

import torch
from head_layouts import EXAMPLES
from sglang_files import ON_GPU
from sglang_models import write_head, write_pair
from transformers import AutoTokenizer, GptOssConfig, GptOssForCausalLM

WINDOW = 12
"""Tokens that every other layer sees, far less than most texts have."""
WIDTH, HEADS, LAYERS, EXPERTS = 64, 4, 4, 4
STRENGTH, APART = 0.25, 0.02
"""The size of weights, and by what part those of the draft differ."""
QUIET = {"o_proj": 0.015, "down_proj": 0.002}
"""By what the results of layers are less than the residual stream. Every other token then follows from the last alone,
as far as which is the most probable; one in seven is another one where windows are two tokens wider."""


def write_sinks(folder: Path) -> None:
    """Write a target, a draft of its kind and a head, `oss`, `small-oss` and `oss-eagle3`, below a folder."""
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    torch.manual_seed(3)
    config = GptOssConfig(
        vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=2, head_dim=WIDTH // HEADS, sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * (LAYERS // 2), num_local_experts=EXPERTS,
        num_experts_per_tok=2, max_position_embeddings=1024, initializer_range=STRENGTH, tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, dtype="float32",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, swiglu_limit=7.0,
        architectures=["GptOssForCausalLM"],
    )  # fmt: skip
    model = GptOssForCausalLM(config).float()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith("sinks"):  # SGLang keeps them in 16 bits
                weights.copy_(torch.randn(weights.shape).bfloat16())
            weights *= next((less for kind, less in QUIET.items() if kind in name), 1)
    write_head(folder / "oss-eagle3", model)
    written = model.bfloat16() if ON_GPU else model  # SGLang makes these layers of the type that config.json says
    write_pair(written, tokenizer, (folder / "oss", folder / "small-oss"), APART)
