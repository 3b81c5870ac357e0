"""What the engine is compared with: transformers' own greedy text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.generation import without_settings
from specc.lab.engine.serving.requests.request import STOP, Completion


@dataclass(frozen=True)
class Tie:
    """A new token that differs from `generate`'s where the target's scores of both are a step of their format apart."""

    position: int
    found: int
    expected: int
    found_score: float
    expected_score: float


@dataclass(frozen=True)
class Verdict:
    """One completion next to transformers' own: where they first differ for no reason, and the two tokens there.

    ties: where they differ because of nearly equal scores; what follows one is compared with what `generate` writes
    after it. found, expected: None past the end of a text.
    """

    identical: bool
    ties: tuple[Tie, ...] = ()
    position: int | None = None
    found: int | None = None
    expected: int | None = None

    @property
    def right(self) -> bool:
        """Whether the completion is the target's greedy text, up to near-ties."""
        return self.position is None


def greedy(
    target: TargetModel,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    eos_token_ids: frozenset[int] = frozenset(),
) -> tuple[int, ...]:
    """The new tokens of `target.generate(do_sample=False)` for one prompt, EOS included.

    Settings of the model's own that would change its greedy text do not count.
    """
    return _generate(target, prompt_ids, max_new_tokens, eos_token_ids)[0]


def compare(
    target: TargetModel, completion: Completion, max_new_tokens: int, eos_token_ids: frozenset[int] = frozenset()
) -> Verdict:
    """Compare a completion of at most max_new_tokens with `greedy`; in 16 bits, near-ties are told apart."""
    tokens, ties = completion.token_ids, list[Tie]()
    start = 0
    while start < max_new_tokens and not (start and tokens[start - 1] in eos_token_ids):
        before = (*completion.prompt_ids, *tokens[:start])
        expected, scores = _generate(target, before, max_new_tokens - start, eos_token_ids)
        at = first_difference(replace(completion, token_ids=tokens[start:]), expected)
        if at is None:
            break
        place = start + at
        token, wanted = _at(tokens, place), _at(expected, at)
        if token is None or wanted is None or not _nearly_equal(scores[at], token, wanted, target.model.dtype):
            return Verdict(False, tuple(ties), place, token, wanted)
        ties.append(Tie(place, token, wanted, float(scores[at][token]), float(scores[at][wanted])))
        start = place + 1
    return Verdict(not ties, tuple(ties))


@torch.no_grad()
def _generate(
    target: TargetModel, prompt_ids: Sequence[int], max_new_tokens: int, eos_token_ids: frozenset[int]
) -> tuple[tuple[int, ...], list[Tensor]]:
    """New tokens of `generate`, and the scores f[V] that each was chosen by."""
    prompt = torch.tensor([list(prompt_ids)], device=target.device)
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(eos_token_ids) or [target.facts.vocab_size],  # None would mean the model's own
        pad_token_id=min(eos_token_ids, default=0),
        output_logits=True,
        return_dict_in_generate=True,
    )
    with plain_attention(target.model), without_settings(target.model):
        generate: Any = target.model.generate
        out = generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
    return tuple(out.sequences[0, prompt.shape[1] :].tolist()), [scores[0] for scores in out.logits]


def _nearly_equal(scores: Tensor, token: int, other: int, dtype: torch.dtype) -> bool:
    """Whether two of the scores f[V] are equal or one step of a 16-bit format apart."""
    pair = scores[[token, other]].double()
    exponent = torch.frexp(pair.abs().max()).exponent - 1
    step = torch.ldexp(torch.tensor(torch.finfo(dtype).eps, dtype=torch.float64), exponent.cpu())
    return dtype.itemsize == 2 and float(abs(pair[0] - pair[1])) <= float(step)


def _at(tokens: Sequence[int], index: int) -> int | None:
    """A token, None past the end."""
    return tokens[index] if index < len(tokens) else None


def first_difference(completion: Completion, expected: Sequence[int]) -> int | None:
    """Return the index of the first new token that differs from `expected`, None if the two are identical.

    A completion that ended at a stop string is compared up to there; any other must have the same length.
    """
    ids = completion.token_ids
    for index, (token, wanted) in enumerate(zip(ids, expected, strict=False)):
        if token != wanted:
            return index
    stopped_early = completion.finish_reason == STOP and len(ids) <= len(expected)
    return None if stopped_early or len(ids) == len(expected) else min(len(ids), len(expected))
