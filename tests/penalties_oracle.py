"""Logits after penalties and biases, over the whole text before a token: transformers' processor and arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from specc.runtime.capabilities.sampling import Sampling


def changed(logits: Tensor, prompt: Sequence[int], output: Sequence[int], how: Sampling) -> list[float]:
    """The logits f32[V] that the next token of a text is drawn from."""
    values = [
        x - how.frequency_penalty * output.count(token) - how.presence_penalty * (token in output)
        for token, x in enumerate(logits.tolist())
    ]
    text, scores = torch.tensor([[*prompt, *output]]), torch.tensor([values])
    processor: Any = RepetitionPenaltyLogitsProcessor(how.repetition_penalty)
    values = processor(text, scores)[0].tolist()
    for token, bias in dict(how.logit_bias).items():
        values[token] += bias
    return values
