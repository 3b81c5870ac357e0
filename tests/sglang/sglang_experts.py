"""A model of Qwen2-MoE's kind and one that drafts for it, small and of random weights, whose tokens go to experts."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from head_layouts import EXAMPLES
from sglang_models import write_pair
from transformers import AutoTokenizer, Qwen2MoeConfig, Qwen2MoeForCausalLM

LAYERS, EXPERTS, CHOSEN = 4, 8, 2
"""Layers, the experts of each, and how many of them a token goes to."""
STRENGTH, QUIET, APART = 0.25, {"o_proj": 0.015, "down_proj": 0.05}, 0.01
"""The size of weights, by what layers are less than the residual stream, and by what part a draft's weights differ.

Nearly every token is another one where tokens go to other experts.
"""


def write_experts(folder: Path) -> None:
    """Write a target and its draft, `sorter` and `guesser`, below a folder."""
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    torch.manual_seed(4)
    config = Qwen2MoeConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, moe_intermediate_size=32,
        shared_expert_intermediate_size=32, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        num_experts=EXPERTS, num_experts_per_tok=CHOSEN, norm_topk_prob=True, max_position_embeddings=1024,
        initializer_range=STRENGTH, tie_word_embeddings=False, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, dtype="float32", architectures=["Qwen2MoeForCausalLM"],
    )  # fmt: skip
    model = Qwen2MoeForCausalLM(config).float()
    without_shared_experts(model)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights *= next((less for kind, less in QUIET.items() if kind in name), 1)
    write_pair(model, tokenizer, (folder / "sorter", folder / "guesser"), APART)


def without_shared_experts(model: Qwen2MoeForCausalLM) -> None:
    """Take away what SGLang has a kernel in Triton for on every device."""
    model.config.shared_expert_intermediate_size = 0
    for layer in model.model.layers:
        del layer.mlp.shared_expert, layer.mlp.shared_expert_gate


def experts_of(output: Mapping[str, Any]) -> list[list[list[int]]]:
    """The experts of every token of an answer but the last, by layer."""
    numbers = bytearray(base64.b64decode(output["routed_experts"]))
    return torch.frombuffer(numbers, dtype=torch.int32).view(-1, LAYERS, CHOSEN).tolist()
