"""Models of Gemma 4's kind and assistants that draft for them by their own keys and values, small and made up.

Most layers of both see a window of the text, and the last two of a target read what earlier ones keep. The assistant is
these two, a little apart, between projections that hand on the embedding of a token and, fainter, the row of the forward
before: so it is right now and then, and with another row it says something else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from head_layouts import EXAMPLES, write
from transformers import AutoTokenizer, Gemma4Config, Gemma4ForConditionalGeneration

WINDOW = 12
"""Tokens that most layers see, far less than most texts have."""
SLIDING, FULL = "sliding_attention", "full_attention"
LAYERS = [SLIDING, FULL, SLIDING, SLIDING, FULL]
SHARING = 2
"""The last layers of a target, which have no keys and values of their own, and of which an assistant is made."""
STRENGTH, LOUD, APART, FAINT = 0.25, 0.5, 0.03, 0.3
"""The size of weights, what the norms of a layer's results multiply by, by what part an assistant's layers differ, and
how much of the row of the forward before it reads."""
WIDTH, NARROW = 64, 16
"""The width of the residual stream, and of a head where a layer sees a window."""
OF_TEXT = "model.language_model."
"""What the names of a target's weights begin with, but for those that see pictures."""
EYES = {
    "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16,
}  # fmt: skip
"""What sees pictures, which nobody shows."""


def write_assistants(folder: Path) -> None:
    """Write `gemma` and `assistant` below a folder, and `even` and `even-assistant`, whose heads are all of one width.

    Those of the first are twice as wide where a layer sees the whole text, as in the models that are published.
    """
    _write(folder / "gemma", folder / "assistant", 2 * NARROW)
    _write(folder / "even", folder / "even-assistant", NARROW)


def _write(target: Path, assistant: Path, wide: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    torch.manual_seed(3)
    text: dict[str, Any] = {
        "model_type": "gemma4_text", "dtype": "float32", "vocab_size": len(tokenizer), "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH, "num_hidden_layers": len(LAYERS), "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": NARROW, "global_head_dim": wide, "sliding_window": WINDOW,
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
                weights.fill_(LOUD)
        # The head is the embedding: without this, every token would be followed by itself.
        model.get_parameter(f"{OF_TEXT}norm.weight").mul_(torch.randint(0, 2, (WIDTH,)) * -2.0 + 1)
    weights = {name: value.clone() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    write(target, weights, config | {"architectures": ["Gemma4ForConditionalGeneration"]})
    drafts = {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant"}
    last = text | {"num_hidden_layers": SHARING, "layer_types": LAYERS[-SHARING:]}
    last |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    write(assistant, _assistant(weights), common | drafts | {"backbone_hidden_size": WIDTH, "text_config": last})


def _assistant(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of an assistant for a target with these."""
    made = {f"model.{name}": weights[f"{OF_TEXT}{name}"] for name in ("embed_tokens.weight", "norm.weight")}
    for place in range(SHARING):
        last = f"{OF_TEXT}layers.{len(LAYERS) - SHARING + place}."
        for name in filter(lambda name: name.startswith(last) and "per_layer" not in name, weights):
            apart = 1 + APART * torch.randn_like(weights[name])
            made[name.replace(last, f"model.layers.{place}.")] = weights[name] * apart
    made["pre_projection.weight"] = torch.cat((torch.eye(WIDTH), FAINT * torch.randn(WIDTH, WIDTH) / WIDTH**0.5), 1)
    made["post_projection.weight"] = torch.eye(WIDTH)
    return made
