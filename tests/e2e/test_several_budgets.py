"""Budgets change in the middle of a text: texts stay, and every step verifies what its own budget would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Protocol

import pytest
import torch
from memoryless import emitted, memoryless

from specc.lab.engine.observe.metrics import Metrics
from specc.lab.engine.observe.step_times import choose_by_times, step_times
from specc.lab.engine.observe.usage import Usage
from specc.lab.engine.serving.requests.request import StopConditions
from specc.runtime import ConfidenceShape
from specc.runtime.plan.nodes import Launch
from specc.runtime.plan.shape import Shape, shapes_expected

from .test_budgets import Text, shares, step
from .test_shapes import AnyShape, alone
from .test_tree_accept import NEW, PROMPTS
from .tree_engine import Config, draft_of, expected, make_engine, plans_of, shapes_of, target_of

CONFIGS = [
    Config("STANDALONE", 1, 4, 5, 1, budget=(2, 3, "all")),
    Config("EAGLE", 1, 3, 4, 16, budget=(2, "all")),
    Config("EAGLE3", 1, 4, 5, 1, shallower=(0, 2), budget=(2, 4)),
    Config("FROZEN_KV_MTP", 1, 3, 4, 16, shallower=(1,), budget=(2, 3)),
    Config("DFLASH", 1, 4, 5, 16, shallower=(0, 2), budget=(2, 3, "all")),
]
each_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.algorithm.lower())


class Ran(Protocol):
    """What a request has come to: tokens and rows of each of its steps."""

    lens: list[int]
    rows: list[int]


class Noting(ConfidenceShape):
    """Takes turns, and keeps what steps expect."""

    def __init__(self, config: Config) -> None:
        """Take every shape after several others."""
        shapes = shapes_of(config)
        super().__init__({plan.shape: plan.buckets for plan in plans_of(config)})
        self.order = [*shapes, *reversed(shapes), *shapes[::2]]
        self._turns = cycle(self.order)
        self.ran: list[Shape] = []
        self.expected_tokens: list[Sequence[Sequence[float]]] = []

    def choose(self, requests: int) -> Shape:
        self.ran.append(next(self._turns))
        return self.ran[-1]

    def expect(self, shape: Shape, expected_tokens: Sequence[Sequence[float]]) -> None:
        super().expect(shape, expected_tokens)
        self.expected_tokens.append(expected_tokens)


def promised(survivals: Sequence[Sequence[float]], shape: Shape) -> list[float]:
    """How many tokens every request is expected to emit at a shape."""
    own = [request[: shape.num_nodes - 1] for request in survivals]
    return [1 + sum(request[:room]) for request, room in zip(own, shares(own, shape.rows), strict=True)]


def promised_by_all(config: Config, survivals: Sequence[Sequence[float]], shape: Shape) -> list[list[float]]:
    """The same, by request, of every shape that a step of `shape` expects something of."""
    columns = [promised(survivals, other) for other in shapes_expected(shapes_of(config), shape)]
    return [list(row) for row in zip(*columns, strict=True)]


def check_steps(config: Config, policy: Noting, texts: Sequence[Ran], want: Sequence[list[list[float]]]) -> None:
    """Let an engine run by a policy: it accepts what `texts` did, and expects of each step what is wanted."""
    completions = make_engine(config, shape=policy).generate(PROMPTS, StopConditions(NEW))
    for prompt, completion, text in zip(PROMPTS, completions, texts, strict=True):
        assert completion.token_ids == expected(prompt)[:NEW]
        assert completion.accept_lens == emitted(text.lens, NEW - 1)
    assert set(policy.ran) == set(shapes_of(config))
    assert len(Counter(rows for text in texts for rows in text.rows)) > 2, "requests have different numbers of rows"
    assert len(want) == len(policy.expected_tokens) > 3
    for mine, theirs in zip(want, policy.expected_tokens, strict=True):
        torch.testing.assert_close(torch.tensor(theirs), torch.tensor(mine), rtol=1e-3, atol=1e-4)


def check_switches(config: Config, seed: int) -> None:
    """Let an engine run any shape at every step: texts are the target's."""
    config = replace(config, overlap=bool(seed % 2), verify="target_only" if seed == 2 else "greedy")
    engine = make_engine(config, padded=True, shape=AnyShape(config, seed))
    for prompt, completion in zip(PROMPTS, engine.generate(PROMPTS, StopConditions(NEW)), strict=True):
        assert completion.token_ids == expected(prompt)[:NEW]
    assert len({shape for _, shape in engine.stats.decodes}) > 1


@each_config
@torch.no_grad()
def test_every_step_verifies_by_its_own_budget(config: Config) -> None:
    """Whatever the budget of the step before: what a request has accepted of its drafts goes on through all of them.

    Every step expects of other budgets what a choice in plain Python would give them.
    """
    target, draft, policy = target_of(config.algorithm), draft_of(config.algorithm), Noting(config)
    assert draft is not None
    texts: list[Text] = []
    for prompt in PROMPTS:
        whole = (*prompt, *expected(prompt))
        drafts = memoryless(target, draft, whole, shifted=config.algorithm != "STANDALONE")
        texts.append(Text(whole, len(prompt) + 1, len(prompt) + NEW, drafts))
    want: list[list[list[float]]] = []
    for shape in cycle(policy.order):
        if not (running := [text for text in texts if text.known < text.end]):
            break
        survivals = step(running, shape.num_steps, shape.rows)
        if shape.num_steps:
            want.append(promised_by_all(config, survivals, shape))
    check_steps(config, policy, texts, want)


@each_config
@pytest.mark.parametrize("seed", range(3))
def test_a_switch_changes_no_text(config: Config, seed: int) -> None:
    """Whatever is chosen for every step, by a scheduler that runs ahead as well, at the temperatures of requests."""
    check_switches(config, seed)


def test_shapes_of_several_budgets() -> None:
    """A chain has the budgets that leave one of its drafts out; one whose drafts all have a row has that."""
    assert [str(shape) for shape in shapes_of(CONFIGS[0])] == ["4", "4b3", "4b2"]
    assert [str(shape) for shape in shapes_of(CONFIGS[2])] == ["4b4", "4b2", "2b2", "0"]
    assert [str(shape) for shape in shapes_of(CONFIGS[3])] == ["3b3", "3b2", "1"]
    assert [shape.rows for shape in shapes_of(CONFIGS[4])] == [5, 3, 2, 3, 2, 1]


def test_all_rows_are_read_as_without_a_budget() -> None:
    """The step that reads every draft has one launch more than a program without budgets, and nothing is shared out."""
    config = CONFIGS[0]
    every, *_ = plans_of(config)
    plain, *_ = plans_of(alone(replace(config, budget=None), Shape(4, 1, 5)))
    assert "G" not in every.dims
    families = [node.kernel.partition("_")[0] for node in every.nodes("step") if isinstance(node, Launch)]
    assert families.count("budget") == 1, "what other budgets promise"
    assert len(every.nodes("step")) == len(plain.nodes("step")) + 1
    shares = "budget.take", "budget.cut", "budget.pack", "budget.logits"
    assert not [op.op for node in every.nodes("step") for op in node.ops if op.op in shares]


def test_an_engine_chooses_by_what_drafts_promise() -> None:
    """By itself, and by times that were measured; rows are counted by what was chosen for them."""
    config = replace(CONFIGS[0], shallower=(0, 2))
    engine = make_engine(config, padded=True)
    assert isinstance(engine.shape, ConfidenceShape)
    times = step_times(engine, repeats=1)
    assert set(times) == set(shapes_of(config)) and len(times) == 6
    for slow, quick in ((Shape(4, 1, 5), Shape(4, 1, 5, 2)), (Shape(4, 1, 5, 2), Shape(4, 1, 5))):
        choose_by_times(
            engine,
            {shape: dict.fromkeys(engine.plan.buckets, 50.0) for shape in times}
            | {shape: dict.fromkeys(engine.plan.buckets, time) for shape, time in ((slow, 20.0), (quick, 1.0))},
        )
        before = Counter(engine.stats.decodes)
        completions = engine.generate(PROMPTS * 2, StopConditions(NEW))
        assert [c.token_ids for c in completions] == [expected(prompt)[:NEW] for prompt in PROMPTS * 2]
        ran = Counter(engine.stats.decodes) - before
        assert ran.total() > 9
        assert ran.keys() >= {(6, quick)}
        assert engine.shape.expected is not None
    usage = Usage(engine)
    verified, saved = usage.rows_verified(), usage.rows_saved()
    assert saved[Shape(4, 1, 5)] == 0 < saved[Shape(4, 1, 5, 2)]
    for shape in usage.steps_by_shape():
        rows = sum(n * rows for (rows, at), n in engine.stats.decodes.items() if at == shape)
        assert verified[shape] + saved[shape] == rows * shape.num_nodes
        assert verified[shape] <= rows * shape.rows
    assert engine.stats.emissions.total() == sum(n * times for n, times in engine.stats.accept_lens.items())
    text = Metrics(engine).text()
    assert f'specc_rows_verified_total{{shape="4b2"}} {float(verified[Shape(4, 1, 5, 2)])}' in text
    assert f'specc_rows_saved_total{{shape="4b2"}} {float(saved[Shape(4, 1, 5, 2)])}' in text
    assert f'specc_rows_accepted_total{{shape="4"}} {float(engine.stats.emissions[Shape(4, 1, 5)])}' in text
