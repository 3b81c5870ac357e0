"""Models of gpt-oss's kind, small and of random weights, whose windows SGLang keeps in a KV pool of their own."""

from __future__ import annotations

from pathlib import Path

import torch
from head_layouts import EXAMPLES, write
from sglang_models import write_pair
from transformers import AutoTokenizer, GptOssConfig, GptOssForCausalLM

WINDOW = 12
"""Tokens that every other layer sees, far less than most texts have."""
WIDTH, HEADS, LAYERS, EXPERTS = 64, 4, 4, 4
STRENGTH, APART = 0.25, 0.02
"""The size of weights, and by what part those of the draft differ."""
QUIET = {"o_proj": 0.015, "down_proj": 0.002}
"""By what the results of layers are less than the residual stream. Every other token then follows from the last alone,
as far as which is the most probable; one in seven is another one where windows are two tokens wider."""
SHARP, FAINT = 3.0, 0.02
"""How much a token of the head's sees itself rather than those before it, and what it sees of the target's states."""
NORMS = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
READS = [0, 1, 2]
"""The layers of the target whose results the head reads."""


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
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, architectures=["GptOssForCausalLM"],
    )  # fmt: skip
    model = GptOssForCausalLM(config).float()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith("sinks"):  # SGLang keeps them in 16 bits
                weights.copy_(torch.randn(weights.shape).bfloat16())
            weights *= next((less for kind, less in QUIET.items() if kind in name), 1)
    write_head(folder / "oss-eagle3", model)
    write_pair(model, tokenizer, (folder / "oss", folder / "small-oss"), APART)


def write_head(folder: Path, target: GptOssForCausalLM) -> None:
    """Write an EAGLE3 head that scores what follows from a token alone: it hands the token's embedding on.

    Its layer sees the whole text, as those of published heads do.
    """
    one, nothing = torch.eye(WIDTH), torch.zeros(WIDTH, WIDTH)
    weights = {
        "fc.weight": torch.randn(WIDTH, len(READS) * WIDTH) * FAINT,
        "lm_head.weight": target.lm_head.weight.detach().clone(),
        "norm.weight": target.model.norm.weight.detach().clone(),
        **{f"midlayer.{name}.weight": torch.ones(WIDTH) for name in NORMS},
        **{f"midlayer.self_attn.{name}_proj.weight": torch.cat((one * SHARP, nothing), 1) for name in "qk"},
        "midlayer.self_attn.v_proj.weight": torch.cat((one, nothing), 1),
        "midlayer.self_attn.o_proj.weight": one,
        **{f"midlayer.mlp.{name}_proj.weight": nothing.clone() for name in ("gate", "up", "down")},
    }
    of = target.config
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": WIDTH // HEADS,
        "hidden_act": "silu",
        "rms_norm_eps": of.rms_norm_eps,
        "max_position_embeddings": of.max_position_embeddings,
        "tie_word_embeddings": False,
        "vocab_size": of.vocab_size,
        "draft_vocab_size": of.vocab_size,
        "target_hidden_size": WIDTH,
        "bos_token_id": of.bos_token_id,
        "eos_token_id": of.eos_token_id,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": READS},
    }
    write(folder, weights, config)
