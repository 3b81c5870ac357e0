"""A target that has fewer rows than there are drafts: which drafts are verified, and that texts are what they were.

What a program does is compared with a choice in plain Python over what a draft without any KV memory finds probable.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from memoryless import Dflash, Growing, Memoryless, emitted, memoryless
from torch import Tensor

from specc.lab.engine.engine import Engine
from specc.lab.engine.reference import greedy
from specc.lab.engine.serving.callbacks import owners_of
from specc.lab.engine.serving.requests.request import StopConditions

from .conftest import PROMPTS, Case

NEW = 24
CASES = [
    Case("STANDALONE", "trained", steps=4, overlap=False, budget=2),
    Case("EAGLE", "trained", steps=3, page_size=16, overlap=False, budget=2),
    Case("EAGLE3", "trained", steps=3, overlap=False, budget=3, reduced=True),
    Case("FROZEN_KV_MTP", "trained", steps=4, overlap=False, budget=2),
    Case("DFLASH", "trained", steps=3, overlap=False, budget=2),
    Case("DSPARK", "corrected", steps=3, overlap=False, budget=2),
    Case("DFLASH2", "corrected", steps=3, overlap=False, budget=2),
]
"""Nobody takes part in a step of others after its text has ended."""


def guess(drafts: Memoryless[Any], known: int, steps: int) -> tuple[list[int], list[float]]:
    """Drafts after the first `known` tokens, and how probable the draft finds each."""
    tokens: list[int] = []
    scores: list[Tensor] = []
    if isinstance(drafts, Dflash):
        scores = list(drafts.scores(known, steps))
        tokens = drafts.chain(known, steps)
    else:
        assert isinstance(drafts, Growing)
        path: list[tuple[int, Tensor]] = []
        for _ in range(steps):
            row, hidden = drafts.run(known, path)
            path.append((drafts.best(row)[0], hidden))
            scores.append(row)
        tokens = [token for token, _ in path]
    return tokens, [float(row.float().softmax(-1).max()) for row in scores]


@dataclass
class Text:
    """A request: what it will write, and how far it is."""

    tokens: tuple[int, ...]
    known: int
    end: int
    drafts: Memoryless[Any]
    lens: list[int] = field(default_factory=list[int])
    rows: list[int] = field(default_factory=list[int])
    accepted: float = 0.0
    expected: float = 0.0

    def survivals(self, confidence: Sequence[float]) -> list[float]:
        """How probable it is that each draft and all before it are accepted."""
        each = [min(1.0, p * (self.accepted + 2) / (self.expected + 2)) for p in confidence]
        return [math.prod(each[: place + 1]) for place in range(len(each))]

    def learn(self, confidence: Sequence[float], room: int) -> None:
        """Take note of the drafts of the last step that were judged; nothing of a step without drafts."""
        if not confidence:
            return
        self.accepted = 0.97 * (self.accepted + self.lens[-1] - 1)
        self.expected = 0.97 * (self.expected + sum(confidence[: min(room, self.lens[-1])]))


def shares(survivals: Sequence[Sequence[float]], each: int) -> list[int]:
    """How many drafts of each request have a row, if there are so many rows a request: the best of the batch."""
    order = [(-p, place, b) for b, own in enumerate(survivals) for place, p in enumerate(own)]
    taken = Counter(b for _, _, b in sorted(order)[: (each - 1) * len(survivals)])
    return [taken[b] for b in range(len(survivals))]


def step(running: Sequence[Text], steps: int, each: int) -> list[list[float]]:
    """One step of a batch: rows go to the best drafts, and what is right of those is accepted.

    Returns how probable it was of each draft that it and those before it are accepted.
    """
    guessed = [guess(text.drafts, text.known, steps) for text in running]
    survivals = [text.survivals(confidence) for text, (_, confidence) in zip(running, guessed, strict=True)]
    rooms = shares(survivals, each)
    for b, (text, room) in enumerate(zip(running, rooms, strict=True)):
        text.rows.append(1 + room)
        wanted = text.tokens[text.known : text.known + room]
        right = [token == want for token, want in zip(guessed[b][0], wanted, strict=False)]
        text.lens.append(1 + (right.index(False) if False in right else len(right)))
        text.known += text.lens[-1]
        text.learn(guessed[b][1], room)
    return survivals


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@torch.no_grad()
def test_the_most_probable_drafts_are_verified(case: Case, make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(case)
    prompts = [tuple(engine.encode(prompt)) for prompt in PROMPTS[:4]]
    texts = []
    for prompt in prompts:
        whole = (*prompt, *greedy(engine.target, prompt, NEW + case.steps))
        drafts = memoryless(engine.target, engine.draft, whole, shifted=engine.plan.kv.shifted)
        texts.append(Text(whole, len(prompt) + 1, len(prompt) + NEW, drafts))
    while running := [text for text in texts if text.known < text.end]:
        step(running, case.steps, case.budget or 0)
    for completion, text in zip(engine.generate(prompts, StopConditions(NEW)), texts, strict=True):
        assert completion.token_ids == text.tokens[len(completion.prompt_ids) :][:NEW]
        assert completion.accept_lens == emitted(text.lens, NEW - 1)
    every = [rows for text in texts for rows in text.rows]
    assert min(every) < (case.budget or 0) < max(every)  # some are cut short for others


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_of_their_requests(seed: int) -> None:
    """Requests without rows, anywhere in a batch, and rows of nobody behind them all."""
    source = torch.Generator().manual_seed(seed)
    lens = torch.randint(0, 4, (6,), generator=source, dtype=torch.int32)
    wanted = [b for b, own in enumerate(lens.tolist()) for _ in range(own)]
    starts = (lens.cumsum(0) - lens).int()
    assert owners_of(lens, starts, len(wanted) + 3).tolist() == [*wanted, -1, -1, -1]
