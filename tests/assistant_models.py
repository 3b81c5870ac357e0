"""Models of Gemma 4's kind and assistants that draft for them by their own keys and values, small and made up.

Most layers of both see a window of the text, and the last two of a target read what earlier ones keep. The assistant is
these two, a little apart, between projections that hand on a token's embedding and, fainter, the row of the forward
before: so it is right now and then, and with another row it says something else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from head_layouts import EXAMPLES, write
from torch import Tensor
from transformers import AutoTokenizer, Gemma4Config, Gemma4ForConditionalGeneration

WINDOW = 12
"""Tokens that most layers see, far less than most texts have."""
SLIDING, FULL = "sliding_attention", "full_attention"
LAYERS = [SLIDING, FULL, SLIDING, SLIDING, FULL]
SHARING = 2
"""The last layers of a target, which have no keys and values of their own, and of which an assistant is made."""
STRENGTH, LOUD, QUIET, APART, FAINT = 0.25, 0.5, 0.1, 0.03, 0.3
"""The size of weights, what the norms of results of the last layers multiply by, and those of the others, by what part
an assistant's layers differ, and how much of the row of the forward before it reads."""
WIDTH = 64
"""The width of the residual stream."""
OF_TEXT = "model.language_model."
"""What the names of a target's weights begin with, but for those that see pictures."""
LAST = tuple(f"{OF_TEXT}layers.{layer}." for layer in range(len(LAYERS) - SHARING, len(LAYERS)))
EYES = {
    "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16,
}  # fmt: skip
"""What sees pictures, which nobody shows."""


def write_assistant(target: Path, assistant: Path, narrow: int, wide: int, sharp: float = 1) -> None:
    """Write a target and its assistant, whose heads have `narrow` entries, or `wide` where a layer sees all.

    Scores are `sharp` times as far apart, of which greedy texts show nothing.
    """
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    torch.manual_seed(3)
    text: dict[str, Any] = {
        "model_type": "gemma4_text", "dtype": "float32", "vocab_size": len(tokenizer), "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH, "num_hidden_layers": len(LAYERS), "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": narrow, "global_head_dim": wide, "sliding_window": WINDOW,
        "layer_types": LAYERS, "num_kv_shared_layers": SHARING, "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": len(tokenizer), "max_position_embeddings": 1024, "initializer_range": STRENGTH,
        "tie_word_embeddings": True, "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": 0,
    }  # fmt: skip
    common = {"dtype": "float32", "tie_word_embeddings": True}
    config = common | {"model_type": "gemma4", "text_config": text, "vision_config": EYES}
    model = Gemma4ForConditionalGeneration(Gemma4Config(**config)).float()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
                weights.fill_(LOUD if name.startswith(LAST) else QUIET)
            elif name.endswith("post_per_layer_input_norm.weight"):
                weights.fill_(QUIET)
        # The head is the embedding: without this, every token would be followed by itself.
        model.get_parameter(f"{OF_TEXT}norm.weight").mul_(sharp * (torch.randint(0, 2, (WIDTH,)) * -2.0 + 1))
    weights = {name: value.clone() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    write(target, weights, config | {"architectures": ["Gemma4ForConditionalGeneration"]})
    drafts = {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant"}
    last = text | {"num_hidden_layers": SHARING, "layer_types": LAYERS[-SHARING:]}
    last |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    write(
        assistant,
        _assistant(weights, FAINT / sharp),
        common | drafts | {"backbone_hidden_size": WIDTH, "text_config": last},
    )


def _assistant(weights: dict[str, Tensor], faint: float) -> dict[str, Tensor]:
    """The weights of an assistant for a target with these, which reads so much of the row before."""
    made = {f"model.{name}": weights[f"{OF_TEXT}{name}"] for name in ("embed_tokens.weight", "norm.weight")}
    for place in range(SHARING):
        last = f"{OF_TEXT}layers.{len(LAYERS) - SHARING + place}."
        for name in filter(lambda name: name.startswith(last) and "per_layer" not in name, weights):
            apart = 1 + APART * torch.randn_like(weights[name])
            made[name.replace(last, f"model.layers.{place}.")] = weights[name] * apart
    made["pre_projection.weight"] = torch.cat((torch.eye(WIDTH), faint * torch.randn(WIDTH, WIDTH) / WIDTH**0.5), 1)
    made["post_projection.weight"] = torch.eye(WIDTH)
    return made
