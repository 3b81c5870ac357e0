"""Models of Gemma 4's kind and assistants that draft for them by their own keys and values, small and made up.

Most layers of both see a window of the text, and the last two of a target read what earlier ones keep. The assistant is
these two, a little apart, between projections that hand on a token's embedding and, fainter, the row of the forward
before: so it is right now and then, and with another row it says something else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from head_layouts import CONFIG, EXAMPLES, WEIGHTS, write
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, Gemma4Config, Gemma4ForConditionalGeneration, Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextModel

WINDOW = 12
"""Tokens that most layers see, far less than most texts have."""
SLIDING, FULL = "sliding_attention", "full_attention"
LAYERS = [SLIDING, FULL, SLIDING, SLIDING, FULL]
SHARING = 2
"""The last layers of a target, which have no keys and values of their own, and of which an assistant is made."""
STRENGTH, LOUD, QUIET, APART, FAINT = 0.25, 0.5, 0.1, 0.03, 0.3
"""The size of weights, what the norms of results of the last layers multiply by, and those of the others, by what part
an assistant's layers differ, and how much of the row of the forward before it reads."""
WIDTH, NARROW = 64, 16
"""The width of the residual stream, and of a head where a layer sees a window."""
OF_TEXT = "model.language_model."
"""What the names of a target's weights begin with, but for those that see pictures."""
LAST = tuple(f"{OF_TEXT}layers.{layer}." for layer in range(len(LAYERS) - SHARING, len(LAYERS)))
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
                weights.fill_(LOUD if name.startswith(LAST) else QUIET)
            elif name.endswith("post_per_layer_input_norm.weight"):
                weights.fill_(QUIET)
        # The head is the embedding: without this, every token would be followed by itself.
        model.get_parameter(f"{OF_TEXT}norm.weight").mul_(torch.randint(0, 2, (WIDTH,)) * -2.0 + 1)
    weights = {name: value.clone() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    write(target, weights, config | {"architectures": ["Gemma4ForConditionalGeneration"]})
    drafts = {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant"}
    last = text | {"num_hidden_layers": SHARING, "layer_types": LAYERS[-SHARING:]}
    last |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    write(assistant, _assistant(weights), common | drafts | {"backbone_hidden_size": WIDTH, "text_config": last})


def _assistant(weights: dict[str, Tensor]) -> dict[str, Tensor]:
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


class _AllShared(Gemma4TextConfig):
    """The layers of an assistant, none of which has keys and values of its own."""

    @property
    def kv_sharing_modes(self) -> list[str | None]:
        """What each does with them."""
        return ["reuse"] * self.num_hidden_layers


class Drafter:
    """An assistant by transformers' layers: what it drafts behind a text.

    SGLang counts the positions of a target that sees pictures from 1 and those of its assistant from 0. So a query
    stands one place before the last token that has keys and values.
    """

    def __init__(self, target: Path, assistant: Path) -> None:
        self._target: Any = Gemma4ForConditionalGeneration.from_pretrained(target, dtype=torch.float32)
        self._weights = load_file(assistant / WEIGHTS)
        self._layers: Any = Gemma4TextModel(_AllShared(**json.loads((assistant / CONFIG).read_text())["text_config"]))
        named = {name.removeprefix("model."): weight for name, weight in self._weights.items()}
        self._layers.float().eval().load_state_dict(named, strict=False)

    @torch.inference_mode()
    def drafts(self, text: Sequence[int], count: int) -> list[int]:
        """So many drafts behind a text, whose last token has no keys and values yet."""
        known: Any = self._target(torch.tensor([text[:-1]]), return_shared_kv_states=True, output_hidden_states=True)
        kept = dict(known.shared_kv_states)
        kept[SLIDING] = [values[:, :, -WINDOW:] for values in kept[SLIDING]]
        place, hidden, drafted = torch.tensor([[len(text) - 3]]), known.hidden_states[-1][:, -1:], [text[-1]]
        for _ in range(count):
            token = self._target.get_input_embeddings()(torch.tensor([drafted[-1:]]))
            stream = torch.cat((token, hidden), -1) @ self._weights["pre_projection.weight"].T
            seen = self._layers(
                inputs_embeds=stream, position_ids=place, shared_kv_states=dict(kept), use_cache=False,
                attention_mask=dict.fromkeys((SLIDING, FULL)),
            ).last_hidden_state  # fmt: skip
            drafted.append(int((seen @ self._weights["model.embed_tokens.weight"].T).argmax()))
            hidden = seen @ self._weights["post_projection.weight"].T
        return drafted[1:]
