"""How much a tree accepts: what a draft without any KV memory would get right, wherever its pages lie.

Texts alone would not show a draft that reads wrong slots: the target corrects it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from specc.engine.attention import plain_attention
from specc.engine.models import CausalModel, DraftModel, EagleDraft
from specc.engine.reference import plain_head
from specc.engine.request import Completion, StopConditions

from .tree_engine import Config, base_texts, expected, make_engine, models

NEW = 24
PROMPTS = [(*text[:cut], *end) for text, cut, end in zip(base_texts(), (33, 12, 1), ((), (9,), ()), strict=True)]
SHAPES = [
    Config("STANDALONE", 2, 4, 7, 1),
    Config("STANDALONE", 4, 3, 16, 1),
    Config("STANDALONE", 8, 2, 20, 1),
    Config("EAGLE", 2, 4, 9, 1),
    Config("EAGLE", 4, 3, 5, 1),
    Config("EAGLE", 8, 3, 30, 1),
    Config("EAGLE", 4, 1, 4, 1),
]
OTHERS: list[dict[str, Any]] = [
    {"page_size": 16, "mask": "bitpacked"},
    {"page_size": 64, "mask": "full", "overlap": True},
]


class Candidate(NamedTuple):
    """A drafted token: its number, path score, token, and the candidate it grew from (-1: the root)."""

    number: int
    score: float
    token: int
    parent: int


class Memoryless:
    """A draft that runs every branch from scratch: the known text, then what the branch was given before."""

    def __init__(self, draft: DraftModel, known: tuple[int, ...], hidden: Tensor) -> None:
        """known: committed text and bonus; hidden T[len(known) - 1, H]: the target's, of all but the bonus."""
        self.draft, self.shifted = draft, isinstance(draft, EagleDraft)
        self.tokens, self.hidden = list(known[int(self.shifted) :]), hidden

    def run(self, path: list[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
        """Probabilities f32[V] and hidden state after the known text and a branch's inputs."""
        ids = torch.tensor([self.tokens + [token for token, _ in path]])
        if isinstance(self.draft, EagleDraft):
            hidden = torch.cat((self.hidden, *(state[None] for _, state in path)))
            with plain_head(self.draft.head):
                states = self.draft.head(ids, hidden[None], torch.arange(ids.shape[1])[None])[0]
        else:
            assert isinstance(self.draft, CausalModel)
            with plain_attention(self.draft.model):
                states = self.draft.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        return self.draft.logits(states[-1]).softmax(-1), states[-1]


def candidates_of(draft: Memoryless, topk: int, steps: int) -> list[Candidate]:
    """All that a step drafts; a branch that changes its parent keeps what it was given before."""
    p, state = draft.run([])
    best = p.topk(topk)
    frontier = [Candidate(k, float(best.values[k]), int(best.indices[k]), -1) for k in range(topk)]
    states, paths, found = [state] * topk, [[] for _ in range(topk)], list(frontier)
    for step in range(1, steps):
        for k, path in enumerate(paths):
            path.append((frontier[k].token, states[k]))
        outputs = [draft.run(path) for path in paths]
        first = topk + topk * topk * (step - 1)
        grown = []
        for k, (p, _) in enumerate(outputs):
            best = p.topk(topk)
            for rank in range(topk):
                score = frontier[k].score * float(best.values[rank])
                grown.append(Candidate(first + k * topk + rank, score, int(best.indices[rank]), frontier[k].number))
        found += grown
        frontier = sorted(grown, key=lambda c: (-c.score, c.number))[:topk]
        states = [outputs[(c.number - first) // topk][1] for c in frontier]
    return found


def accepted(found: list[Candidate], nodes: int, text: tuple[int, ...]) -> int:
    """Tokens of `text` that a step commits: the path along the kept candidates, and the bonus."""
    kept = sorted(sorted(found, key=lambda c: (-c.score, c.number))[: nodes - 1], key=lambda c: c.number)
    at, length = -1, 0
    for token in text:
        child = next((c for c in kept if c.parent == at and c.token == token), None)
        if child is None:
            break
        at, length = child.number, length + 1
    return length + 1


@torch.no_grad()
def accepted_lengths(config: Config, prompt: tuple[int, ...]) -> list[int]:
    """What every step commits while the target's own text is written, at least NEW tokens."""
    target, drafts = models()
    text = (*prompt, *expected(prompt))
    with plain_attention(target.model):
        hidden = target.model.base_model(input_ids=torch.tensor([text]), use_cache=False).last_hidden_state[0]
    lengths, at = [], len(prompt) + 1
    while at < len(prompt) + NEW:
        draft = Memoryless(drafts[config.algorithm], text[:at], hidden[: at - 1])
        lengths.append(accepted(candidates_of(draft, config.topk, config.steps), config.nodes, text[at:]))
        at += lengths[-1]
    return lengths


def run(config: Config, rounds: int = 1, **options: Any) -> list[list[Completion]]:
    """Complete the prompts together, `rounds` times with one engine."""
    engine = make_engine(config, **options)
    results = [engine.generate(PROMPTS, StopConditions(NEW)) for _ in range(rounds)]
    assert (engine.stats.shared_tokens > 0) is (rounds > 1 and engine.prefixes.enabled)
    return results


@pytest.mark.parametrize("config", SHAPES, ids=lambda c: f"{c.algorithm.lower()}-k{c.topk}-s{c.steps}-n{c.nodes}")
def test_a_tree_accepts_what_a_draft_without_kv_memory_gets_right(config: Config) -> None:
    wanted = [accepted_lengths(config, prompt) for prompt in PROMPTS]
    assert max(max(lengths) for lengths in wanted) > 1
    for other in ({}, *OTHERS):
        (completions,) = run(replace(config, **other), padded=bool(other))
        for prompt, lengths, completion in zip(PROMPTS, wanted, completions, strict=True):
            assert completion.token_ids == expected(prompt)[:NEW]
            assert list(completion.accept_lens) == lengths


@pytest.mark.parametrize("config", [SHAPES[1], SHAPES[3]], ids=lambda c: c.algorithm.lower())
def test_shared_pages_are_as_good_as_own_ones(config: Config) -> None:
    first, second = run(config, rounds=2)
    for prompt, own, shared in zip(PROMPTS, first, second, strict=True):
        assert own.token_ids == shared.token_ids == expected(prompt)[:NEW]
        assert own.accept_lens == shared.accept_lens
