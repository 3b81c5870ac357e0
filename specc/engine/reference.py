"""What the engine is compared with: transformers' own greedy text, and drafting without any KV memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from specc.engine.attention import plain_attention
from specc.engine.eagle_head import EagleHead
from specc.engine.models import DraftModel, EagleDraft, StandaloneDraft, TargetModel
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
    target: TargetModel, draft: DraftModel, text: Sequence[int], prompt_len: int, steps: int, *, shifted: bool
) -> tuple[int, ...]:
    """How many tokens each decode step of a chain of `steps` drafts commits while it writes `text`.

    `text` is the prompt and the target's greedy continuation. Everything is computed from scratch at every
    draft, without KV memory: slow, and right by construction. It tells whether a low accepted length is the
    draft's fault or the engine's.
    """
    tokens = torch.tensor(list(text), device=target.device)
    with plain_attention(target.model):
        hidden = target.model.base_model(input_ids=tokens[None], use_cache=False).last_hidden_state[0]
    lengths: list[int] = []
    at = prompt_len + 1  # tokens known: the prompt and the prefill's token
    while at < len(text):
        drafts = _drafts(draft, tokens[:at], hidden[: at - 1], steps, shifted)
        wanted = text[at : at + steps]
        correct = next((i for i, pair in enumerate(zip(drafts, wanted, strict=False)) if pair[0] != pair[1]), None)
        lengths.append(1 + (len(wanted) if correct is None else correct))
        at += lengths[-1]
    return tuple(lengths)


def _drafts(draft: DraftModel, tokens: Tensor, hidden: Tensor, steps: int, shifted: bool) -> list[int]:
    """Return the chain drafted after tokens i64[n], the target's hidden states T[n - 1, H] being known."""
    drafts: list[int] = []
    for _ in range(steps):
        ids = tokens[int(shifted) :][None]
        if isinstance(draft, EagleDraft):
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
            with plain_head(draft.head):
                states = draft.head(ids, hidden[None], positions)[0]
            hidden = torch.cat((hidden, states[-1:]))
        elif isinstance(draft, StandaloneDraft):
            with plain_attention(draft.model):
                states = draft.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        else:
            raise TypeError(f"no reference for a draft of type {type(draft).__name__}")
        drafts.append(int(draft.logits(states[-1]).argmax()))
        tokens = torch.cat((tokens, tokens.new_tensor(drafts[-1:])))
    return drafts


@contextmanager
def plain_head(head: EagleHead) -> Iterator[None]:
    """Run a head with transformers' own attention inside the block."""
    before, head.config._attn_implementation = head.config._attn_implementation, "sdpa"
    try:
        yield
    finally:
        head.config._attn_implementation = before
