"""A model of Qwen3-MoE's kind and an EAGLE3 head, small and of random weights: layers exchange rows among ranks."""

from __future__ import annotations

from pathlib import Path

import torch
from head_layouts import EXAMPLES
from sglang_experts import CHOSEN, EXPERTS, LAYERS, STRENGTH
from sglang_files import ON_GPU
from sglang_models import write_head
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

FAINT = {"o_proj": 0.015, "down_proj": 0.005}
"""By what layers are less than the residual stream: most tokens follow from the last one, all that the head knows."""
WIDE = 64 if ON_GPU else 16
"""The size of a head, of which a GPU's kernel for rows and keys at once has a few alone."""
HEADS = 4
"""Of keys and values as well: SGLang gives CPUs as many as there are ranks, if they are fewer."""


def write_expert_head(folder: Path) -> None:
    """Write a target and its head, `sorter` and `sorter-eagle3`, below a folder."""
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    torch.manual_seed(4)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, moe_intermediate_size=32,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS, head_dim=WIDE,
        num_experts=EXPERTS, num_experts_per_tok=CHOSEN, norm_topk_prob=True, max_position_embeddings=1024,
        initializer_range=STRENGTH, tie_word_embeddings=False, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, dtype="float32", architectures=["Qwen3MoeForCausalLM"],
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config).float()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights *= next((less for kind, less in FAINT.items() if kind in name), 1)
    write_head(folder / "sorter-eagle3", model)
    model.save_pretrained(folder / "sorter")
    tokenizer.save_pretrained(folder / "sorter")
