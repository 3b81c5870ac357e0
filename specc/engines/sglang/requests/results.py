"""What SGLang gets of a program's step, and what it has between steps of requests whose state is the program's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.utils import GenerationBatchResult
from torch import Tensor

from .refusals import LOGPROBS


@dataclass
class SglangResult(GenerationBatchResult):
    """What SGLang gets of a step, and the health words i32[b] of its requests, on the host once `copy_done` is.

    `faults` names what a word says; `verified` is told once they are there which requests go on, by their places.
    """

    health: Tensor | None = None
    faults: Callable[[int], tuple[str, ...]] | None = None
    verified: Callable[[list[int]], None] | None = None


def scores(batch: Any, host: Mapping[str, Tensor]) -> LogitsProcessorOutput:
    """What SGLang reads of emitted tokens: their log-probabilities [b, A], and the best at each of b * A places."""
    output = LogitsProcessorOutput(next_token_logits=None, next_token_logprobs=host.get(LOGPROBS))
    counts = (batch.top_logprobs_nums or []) if "best_tokens" in host else []
    if any(counts):
        output.next_token_top_logprobs_val, output.next_token_top_logprobs_idx = (
            [place[:count] for count, of in zip(counts, host[name], strict=True) for place in of]
            for name in ("best_logprobs", "best_tokens")
        )
    return output


class Published:
    """Lengths and bonus tokens that a step has written already: what SGLang would scatter again, it then skips."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.published_seq_lens: Tensor | None = None
        self.published_bonus: Tensor | None = None

    def saying(self, publish: Callable[[Tensor], None] | None) -> Callable[[Tensor], None] | None:
        """`publish` for lengths that are in SGLang's table already, see `relay`."""
        if publish is None:
            return None

        def published(lengths: Tensor) -> None:
            self.published_seq_lens = lengths
            publish(lengths)

        return published


class Numbers:
    """SGLang carries what a draft of some tokens picks as it numbers them, a program carries tokens."""

    def __init__(self, scored: Tensor | None, vocabulary: int) -> None:
        """scored: see `scored_tokens`; vocabulary: tokens of the target. `count`: how many tokens have numbers."""
        self._tokens, self.count = scored, vocabulary if scored is None else len(scored)
        if scored is not None:
            self._numbers = torch.zeros(vocabulary, dtype=torch.int64, device=scored.device)
            self._numbers[scored] = torch.arange(len(scored), device=scored.device)

    def of(self, tokens: Tensor) -> Tensor:
        """The draft's numbers i64[b, K] of tokens that it scores."""
        return tokens if self._tokens is None else self._numbers[tokens]

    def tokens(self, numbers: Tensor) -> Tensor:
        """The tokens i64[b, K] of numbers."""
        return numbers if self._tokens is None else self._tokens[numbers]
