"""Where two greedy texts of a model part, how near the target's two best scores were: by transformers, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

NEAR = 2**-6
"""Two of bf16's steps, as a part of the best score. Scores no further apart are a near tie: rounding decides."""


class Target:
    """A model by transformers, its weights as SGLang has them, in bf16 and computed with in float32."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self._model = model.to(self._device, torch.float32).eval()

    def parting(self, prompt: list[int], ids: list[int], reference_ids: list[int], place: int) -> dict[str, Any]:
        """What the target says where two answers to a prompt differ first.

        The tokens of both, the distance of the two best scores, and whether the answers are these two and a near tie.
        """
        with torch.inference_mode():
            scores = self._model(torch.tensor([prompt + ids[:place]], device=self._device)).logits[0, -1]
        (first, second), tokens = (best.tolist() for best in scores.topk(2))
        pair = [answer[place] if place < len(answer) else None for answer in (ids, reference_ids)]
        near = first - second <= NEAR * abs(first)
        return {"place": place, "tokens": pair, "gap": first - second, "near": near and set(pair) == set(tokens)}
