"""Trees of which the target has not a row for every node: which nodes are verified, and that texts are what they were.

A choice in plain Python, over what a draft without any KV memory finds probable, says what a program must do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import pytest
import torch
from memoryless import Dflash, Growing, Memoryless, emitted, memoryless

from specc.lab.engine.serving.requests.request import StopConditions
from specc.runtime.plan.shape import Shape

from .test_budgets import shares
from .test_several_budgets import Noting, check_steps, check_switches, promised_by_all
from .test_tree_accept import NEW, PROMPTS, Candidate, accepted, candidates_of, products_of
from .tree_engine import Config, draft_of, expected, make_engine, shapes_of, target_of

CONFIGS = [
    Config("STANDALONE", 2, 4, 9, 1, budget=3),
    Config("EAGLE", 4, 3, 16, 16, mask="bitpacked", budget=4),
    Config("EAGLE3", 8, 2, 20, 1, mask="full", budget=5),
    Config("FROZEN_KV_MTP", 2, 4, 9, 16, mask="slots", budget=2),
    Config("DFLASH", 4, 3, 16, 1, budget=4),
    Config("DSPARK", 2, 4, 9, 16, mask="slots", budget=3),
    Config("EAGLE", 4, 1, 5, 1, budget=2),
]
SEVERAL = [
    Config("STANDALONE", 2, 4, 9, 1, budget=(2, 4, "all")),
    Config("EAGLE", 4, 3, 16, 16, mask="slots", shallower=(0,), budget=(3, 8)),
    Config("DFLASH", 4, 3, 12, 1, budget=(2, 6, "all")),
]


def name_of(config: Config) -> str:
    """What tells a configuration from the others."""
    return f"{config.algorithm.lower()}-k{config.topk}-n{config.nodes}"


@dataclass
class Text:
    """A request: what it will write, how far it is, and what its drafts have come to."""

    tokens: tuple[int, ...]
    known: int
    end: int
    drafts: Memoryless[Any]
    lens: list[int] = field(default_factory=list[int])
    rows: list[int] = field(default_factory=list[int])
    right: float = 0.0
    hoped: float = 0.0

    def ranked(self, config: Config) -> list[Candidate]:
        """The nodes of a step's tree, the best path first."""
        if isinstance(self.drafts, Dflash):
            found = products_of(self.drafts.scores(self.known, config.steps).softmax(-1), config.topk)
        else:
            assert isinstance(self.drafts, Growing)
            found = candidates_of(self.drafts, self.known, config.topk, config.steps)
        return sorted(found, key=lambda c: (-c.score, c.number))[: config.nodes - 1]

    def survivals(self, nodes: Sequence[Candidate]) -> list[float]:
        """How probable it is that each path is accepted, as far as those before it are not less so."""
        found, path, least = shares_of(nodes), {-1: 1.0}, list[float]()
        for node in nodes:
            path[node.number] = path[node.parent] * min(1.0, found[node] * (self.right + 2) / (self.hoped + 2))
            least.append(min([path[node.number], *least[-1:]]))
        return least

    def step(self, nodes: list[Candidate], room: int) -> None:
        """Verify the first so many nodes, and take note of those whose parent was right."""
        self.rows.append(1 + room)
        text, at = self.tokens[self.known :], [-1]
        for token in text:
            right = [node for node in nodes[:room] if node.parent == at[-1] and node.token == token]
            if not right:
                break
            at.append(right[0].number)
        self.lens.append(len(at))
        assert self.lens[-1] == accepted(nodes, 1 + room, text)
        self.known += self.lens[-1]
        if nodes:
            found = shares_of(nodes)
            self.right = 0.97 * (self.right + self.lens[-1] - 1)
            self.hoped = 0.97 * (self.hoped + sum(found[node] for node in nodes[:room] if node.parent in at))


def shares_of(nodes: Sequence[Candidate]) -> dict[Candidate, float]:
    """How probable the draft finds each node behind its parent."""
    score = {-1: 1.0} | {node.number: node.score for node in nodes}
    return {node: node.score / score[node.parent] if node.score else 0.0 for node in nodes}


def texts_of(config: Config) -> list[Text]:
    """A request for each of the prompts."""
    target, draft = target_of(config.algorithm), draft_of(config.algorithm)
    assert draft is not None
    texts: list[Text] = []
    for prompt in PROMPTS:
        whole = (*prompt, *expected(prompt))
        drafts = memoryless(target, draft, whole, shifted=config.algorithm != "STANDALONE")
        texts.append(Text(whole, len(prompt) + 1, len(prompt) + NEW, drafts))
    return texts


def step(config: Config, running: Sequence[Text], shape: Shape) -> list[list[float]]:
    """One step of a batch; how probable it was of each node that its path is accepted."""
    nodes = [text.ranked(config) if shape.num_steps else [] for text in running]
    survivals = [text.survivals(own) for text, own in zip(running, nodes, strict=True)]
    for text, own, room in zip(running, nodes, shares(survivals, shape.rows), strict=True):
        text.step(own, room)
    return survivals


@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
@torch.no_grad()
def test_the_most_probable_nodes_are_verified(config: Config) -> None:
    texts = texts_of(config)
    while running := [text for text in texts if text.known < text.end]:
        step(config, running, shapes_of(config)[0])
    completions = make_engine(config).generate(PROMPTS, StopConditions(NEW))
    for prompt, completion, text in zip(PROMPTS, completions, texts, strict=True):
        assert completion.token_ids == expected(prompt)[:NEW]
        assert completion.accept_lens == emitted(text.lens, NEW - 1)
    every = [rows for text in texts for rows in text.rows]
    assert min(every) < shapes_of(config)[0].rows < max(every)  # some are cut short for others
    assert max(max(text.lens) for text in texts) > 1


@pytest.mark.parametrize("config", SEVERAL, ids=name_of)
@torch.no_grad()
def test_every_step_verifies_by_its_own_budget(config: Config) -> None:
    policy, texts = Noting(config), texts_of(config)
    want: list[list[list[float]]] = []
    for shape in cycle(policy.order):
        if not (running := [text for text in texts if text.known < text.end]):
            break
        survivals = step(config, running, shape)
        if shape.num_steps:
            want.append(promised_by_all(config, survivals, shape))
    check_steps(config, policy, texts, want)


@pytest.mark.parametrize("config", SEVERAL, ids=name_of)
@pytest.mark.parametrize("seed", range(3))
def test_a_switch_changes_no_text(config: Config, seed: int) -> None:
    """Whatever is chosen for every step, by a scheduler that runs ahead as well, at the temperatures of requests."""
    check_switches(config, seed)


def test_shapes_of_several_budgets() -> None:
    """A tree has the budgets that leave a node out, and beside it there may be a step that drafts nothing."""
    assert [str(shape) for shape in shapes_of(SEVERAL[0])] == ["4x2x9", "4x2x9b4", "4x2x9b2"]
    assert [str(shape) for shape in shapes_of(SEVERAL[1])] == ["3x4x16b8", "3x4x16b3", "0"]
