"""What the engine is compared with: transformers' own greedy text, and drafting without any KV memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from specc.engine.attention import plain_attention
from specc.engine.drafts import Draft
from specc.engine.memoryless import memoryless
from specc.engine.models import TargetModel
from specc.engine.request import STOP, Completion


@torch.no_grad()
def greedy(
    target: TargetModel,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    eos_token_ids: frozenset[int] = frozenset(),
) -> tuple[int, ...]:
    """The new tokens of `target.generate(do_sample=False)` for one prompt, EOS included."""
    prompt = torch.tensor([list(prompt_ids)], device=target.device)
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(eos_token_ids) or [target.facts.vocab_size],  # None would mean the model's own
        pad_token_id=min(eos_token_ids, default=0),
    )
    with plain_attention(target.model):
        generate: Any = target.model.generate
        out = generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
    return tuple(out[0, prompt.shape[1] :].tolist())


def first_difference(completion: Completion, expected: Sequence[int]) -> int | None:
    """Return the index of the first new token that differs from `expected`, None if the two are identical.

    A completion that ended at a stop string is compared up to there; any other must have the same length.
    """
    found = completion.token_ids
    for index, (token, wanted) in enumerate(zip(found, expected, strict=False)):
        if token != wanted:
            return index
    stopped_early = completion.finish_reason == STOP and len(found) <= len(expected)
    return None if stopped_early or len(found) == len(expected) else min(len(found), len(expected))


@torch.no_grad()
def accepted_lengths(
    target: TargetModel, draft: Draft, text: Sequence[int], prompt_len: int, steps: int, *, shifted: bool
) -> tuple[int, ...]:
    """How many tokens each decode step of a chain of `steps` drafts commits while it writes `text`.

    `text` is the prompt and the target's greedy continuation. What the draft gets right is computed without KV memory,
    see `memoryless`. It tells whether a low accepted length is the draft's fault or the engine's.
    """
    drafts = memoryless(target, draft, text, shifted=shifted)
    lengths: list[int] = []
    at = prompt_len + 1  # tokens known: the prompt and the prefill's token
    while at < len(text):
        wanted = text[at : at + steps]
        pairs = enumerate(zip(drafts.chain(at, steps), wanted, strict=False))
        wrong = next((index for index, (token, right) in pairs if token != right), len(wanted))
        lengths.append(1 + wrong)
        at += lengths[-1]
    return tuple(lengths)
