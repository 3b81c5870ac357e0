"""Drafts that were drawn, of which the target reads some: texts as an oracle writes them, which shares rows out itself.

It looks at what drafts are drawn from before it draws them, with whole models and nothing kept of the step before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import pytest
import rejection_oracle as oracle
import torch
from memoryless import Dflash, Growing, memoryless
from torch import Tensor

from specc.lab.engine.engine import Engine
from specc.lab.engine.serving.requests.request import Sampling, StopConditions

from .test_budgets import shares
from .test_rejection import MODES, PROMPTS, SAMPLINGS, scores
from .test_several_budgets import Noting
from .test_shapes import AnyShape
from .tree_engine import Config, draft_of, expected, make_engine, shapes_of, target_of

NEW = 16
CHAINS = [
    Config("STANDALONE", 1, 3, 4, 1, budget=2),
    Config("EAGLE", 1, 3, 4, 16, budget=2),
    Config("EAGLE3", 1, 4, 5, 1, budget=3),
    Config("FROZEN_KV_MTP", 1, 3, 4, 1, budget=2),
    Config("DFLASH", 1, 3, 4, 1, budget=2),
    Config("DSPARK", 1, 3, 4, 1, budget=2),
    Config("DFLASH2", 1, 3, 4, 1, budget=2),
]
each_mode = pytest.mark.parametrize("mode", MODES)
HEADS = [replace(CHAINS[0], head="weights")]
each_chain = pytest.mark.parametrize("config", [*CHAINS, *HEADS], ids=lambda c: f"{c.algorithm.lower()}-{c.head}")


@dataclass
class Text:
    """A request and what it has written so far; how many drafts were judged in each step."""

    prompt: tuple[int, ...]
    sampling: Sampling
    tokens: list[int]
    accepted: float = 0.0
    expected: float = 0.0
    judged: list[int] = field(default_factory=list[int])

    def drafted(self, config: Config, steps: int) -> tuple[list[int], list[list[float]], list[float]]:
        """The drafts of a step, what each is drawn from, and the most that any token has of it."""
        target, draft = target_of(config.algorithm), draft_of(config.algorithm)
        assert draft is not None
        drafts: Any = memoryless(target, draft, self.tokens, shifted=config.algorithm != "STANDALONE")
        known, seed, t = len(self.tokens), self.sampling.seed or 0, self.sampling.temperature
        path: list[tuple[int, Tensor]] = []

        def drawn(row: Tensor, place: int) -> int:
            return oracle.draft_drawn(row.float().tolist(), t, seed, known - 1, place)

        rows = list(drafts.scores(known, steps, drawn).float().tolist()) if isinstance(drafts, Dflash) else []
        tokens = [oracle.draft_drawn(row, t, seed, known - 1, i) for i, row in enumerate(rows)]
        for i in range(0 if isinstance(drafts, Dflash) else steps):
            assert isinstance(drafts, Growing)
            row, hidden = drafts.run(known, path)
            rows.append(row.float().tolist())
            tokens.append(oracle.draft_drawn(rows[-1], t, seed, known - 1, i))
            path.append((tokens[-1], hidden))
        return (
            tokens,
            [oracle.softmax(row, t) if t else row for row in rows],
            [max(oracle.softmax(row, t or 1.0)) for row in rows],
        )

    def survivals(self, sure: Sequence[float]) -> list[float]:
        """How probable it is that each draft and all before it are accepted, whatever they are."""
        each = [min(1.0, p * (self.accepted + 2) / (self.expected + 2)) for p in sure]
        return [math.prod(each[: place + 1]) for place in range(len(each))]

    def write(self, mode: str, config: Config, drafts: list[int], q: list[list[float]], room: int) -> int:
        """Emit the tokens of a step of which the first ``room`` drafts are judged; how many there are."""
        root, t = len(self.tokens) - 1, self.sampling.temperature
        rows = scores(target_of(config.algorithm).model, self.tokens + drafts[:room])[root:]
        if t:
            p = [oracle.softmax(row, t) for row in rows]
            new = oracle.emitted(mode, p, q[:room], drafts[:room], self.sampling.seed or 0, root)
        else:
            best = [row.index(max(row)) for row in rows]
            right = [draft == token for draft, token in zip(drafts[:room], best, strict=False)]
            new = best[: [*right, False].index(False) + 1]
        self.tokens += new
        self.judged.append(room)
        return len(new)


@torch.no_grad()
def written(mode: str, config: Config, order: Sequence[tuple[int, int]]) -> list[Text]:
    """What all prompts write, and the steps of a batch have so many drafts and rows, in turn and again."""
    texts: list[Text] = []
    model = target_of(config.algorithm).model
    for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True):
        row, t = scores(model, prompt)[-1], sampling.temperature
        first = oracle.drawn(oracle.softmax(row, t), sampling.seed or 0, len(prompt)) if t else row.index(max(row))
        texts.append(Text(prompt, sampling, [*prompt, first]))
    for steps, each in cycle(order):
        if not (running := [text for text in texts if len(text.tokens) < len(text.prompt) + NEW]):
            return texts
        drafted = [text.drafted(config, steps) for text in running]
        rooms = shares([text.survivals(sure) for text, (*_, sure) in zip(running, drafted, strict=True)], each)
        for text, (drafts, q, sure), room in zip(running, drafted, rooms, strict=True):
            count = text.write(mode, config, drafts, q, room)
            if steps:
                text.accepted = 0.97 * (text.accepted + count - 1)
                text.expected = 0.97 * (text.expected + sum(sure[: min(room, count)]))
    raise AssertionError


def emitted(engine: Engine) -> list[tuple[int, ...]]:
    """What an engine writes for all prompts at once."""
    order = [engine.add(p, StopConditions(NEW), sampling=s) for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
    done: dict[int, tuple[int, ...]] = {}
    while engine.has_work:
        done |= {completion.request_id: completion.token_ids for completion in engine.step()}
    assert engine.stats.unhealthy == 0
    return [done[request] for request in order]


@each_mode
@each_chain
def test_texts_are_the_oracle_s(mode: str, config: Config) -> None:
    """Token for token, a greedy request among them; what a request has of the rows changes from step to step."""
    assert isinstance(config.budget, int)
    wanted = written(mode, config, [(config.steps, config.budget)])
    engine = make_engine(replace(config, verify=mode))
    for text, tokens in zip(wanted, emitted(engine), strict=True):
        assert tokens == tuple(text.tokens[len(text.prompt) :][:NEW])
    assert wanted[2].tokens[len(PROMPTS[2]) :][:NEW] == list(expected(PROMPTS[2])[:NEW])
    assert len({room for text in wanted for room in text.judged}) > 2


@each_mode
def test_budgets_change(mode: str) -> None:
    """From step to step, to a row for every draft and to no drafts: each step accepts what the oracle does."""
    config = replace(CHAINS[0], steps=4, nodes=5, shallower=(0, 2), budget=(2, 3, "all"), verify=mode)
    policy = Noting(config)
    wanted = written(mode, config, [(shape.num_steps, shape.rows) for shape in policy.order])
    for text, tokens in zip(wanted, emitted(make_engine(config, shape=policy)), strict=True):
        assert tokens == tuple(text.tokens[len(text.prompt) :][:NEW])
    assert set(policy.ran) == set(shapes_of(config))


@each_mode
@each_chain
@pytest.mark.parametrize("overlap", [False, True])
def test_greedy_requests_write_the_greedy_text(mode: str, config: Config, overlap: bool) -> None:
    """Whatever their rows are, of padded batches and of budgets that change in any step."""
    config = replace(config, verify=mode, overlap=overlap, budget=(2, 3, "all") if config.steps > 3 else (2, "all"))
    engine = make_engine(config, padded=True, shape=AnyShape(config, 5))
    for prompt, completion in zip(PROMPTS, engine.generate(PROMPTS, StopConditions(NEW)), strict=True):
        assert completion.token_ids == expected(prompt)[:NEW]
