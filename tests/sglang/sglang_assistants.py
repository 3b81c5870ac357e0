"""Models of Gemma 4's kind and their assistants for SGLang, and what an assistant drafts by transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from assistant_models import FULL, SLIDING, WINDOW, write_assistant
from head_layouts import CONFIG, WEIGHTS
from safetensors.torch import load_file
from transformers import Gemma4ForConditionalGeneration, Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextModel

__all__ = ["WINDOW", "Drafter", "write_assistants"]
NARROW = 16
"""The width of a head where a layer sees a window."""


def write_assistants(folder: Path) -> None:
    """Write `gemma` and `assistant` below a folder, and `even` and `even-assistant`, whose heads are all of one width.

    Those of the first are twice as wide where a layer sees the whole text, as in the models that are published.
    """
    write_assistant(folder / "gemma", folder / "assistant", NARROW, 2 * NARROW)
    write_assistant(folder / "even", folder / "even-assistant", NARROW, NARROW)


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
