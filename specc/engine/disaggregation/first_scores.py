"""What a program says of the first token, as tensors of a message: numbers of a head are finite, these may not be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from specc.engine.serving.request import Score

TOKENS, LOGPROBS = "score.tokens", "score.logprobs"
"""Tensors of a message: the most probable tokens i32[n]; log-probabilities f32[1 + n], the first token's and theirs."""
_MOST = 256
"""Most tokens beside the first one."""
MOST_BYTES = 4 * (_MOST + _MOST + 1)


def score_tensors(scores: Sequence[Score]) -> dict[str, Tensor]:
    """The tensors of what is said of one token, or of nothing."""
    if not scores:
        return {}
    (score,) = scores
    tokens = torch.tensor([token for token, _ in score.best], dtype=torch.int32)
    return {TOKENS: tokens, LOGPROBS: torch.tensor([score.logprob, *(logprob for _, logprob in score.best)])}


def read_scores(tensors: Mapping[str, Tensor]) -> tuple[Score, ...]:
    """What the tensors of a message say of one token, or of nothing; ValueError if they make no sense."""
    if LOGPROBS not in tensors:
        return ()
    tokens, logprobs = tensors[TOKENS], tensors[LOGPROBS]
    found = (tokens.dtype, tokens.dim(), logprobs.dtype, tuple(logprobs.shape))
    if found != (torch.int32, 1, torch.float32, (tokens.numel() + 1,)):
        raise ValueError(f"log-probabilities are {found}")
    first, *rest = logprobs.tolist()
    return (Score(first, tuple(zip(tokens.tolist(), rest, strict=True))),)
