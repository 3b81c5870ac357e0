"""Texts are distributed as the target's where the shape of every step is drawn, of every half of a batch anew.

A million draws by each rule, of requests in long texts, compared with products of the target's own probabilities.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from test_distribution import (
    ALPHABET,
    LENGTH,
    MOST,
    TARGET,
    VOCAB,
    Patch,
    Turns,
    coded,
    distribution,
    plans_of,
    surprise,
    surprises,
    whole,
    with_operands,
    write,
    written,
)
from torch import Tensor

from specc.runtime.batch import Batch
from specc.runtime.entry.result import StepResult
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.shape import Shape
from specc.runtime.step import Step

ROWS = 1 << 13
LONG = 4 * LENGTH
"""Tokens of a text, several times those whose products are compared."""
CHAINS = [{"num_steps": steps} for steps in (5, 3, 1, 0)]
TREES = [{"num_steps": 3, "topk": 2, "num_draft_tokens": 6}, {"num_steps": 1, "topk": 3, "num_draft_tokens": 4}]
MODES = ("rejection", "block")


def at_random(plans: Sequence[Plan]) -> Turns:
    """About a half of the requests, and then the others, each at whichever shape."""
    rng, source = random.Random(len(plans)), torch.Generator().manual_seed(len(plans))

    def turns(at: Tensor) -> list[tuple[Shape, Tensor]]:
        first = torch.rand(len(at), generator=source) < 0.5
        return [(rng.choice(plans).shape, some) for some in (at[first], at[~first]) if len(some)]

    return turns


def too_fond() -> Tensor:
    """Logits f32[2, VOCAB, VOCAB] of a draft that says the target's favourite far too often: a coin decides of most."""
    return TARGET + 2.0 * torch.nn.functional.one_hot(TARGET.argmax(-1), VOCAB)


def plain(rows: int) -> Tensor:
    """The numbers of the kinds of so many requests: of those that ask for nothing but a temperature."""
    return torch.arange(rows) % 2


@cache
def program(verify: str, *, features: bool) -> tuple[Plan, ...]:
    """The program of all chains that a rule knows, and of trees where it knows them; the deepest first."""
    more = {} if features else {"sampling": []}
    return plans_of(ROWS, verify=verify, shapes=CHAINS + TREES * (verify == "target_only"), **more)


def long_texts(verify: str) -> tuple[Tensor, Tensor]:
    """A million tokens, and the kinds of who wrote them: i64[MOST, LONG], i64[MOST]."""
    plans = program(verify, features=False)
    return write(plans, MOST, at_random(plans), ROWS, LONG, plain, too_fond())


def of_parts(found: Tensor, kinds: Tensor, length: int) -> list[float]:
    """How probable texts are if the target has written them: so many tokens after what was before them.

    Of a kind with a temperature alone these hang on the token before, and on where they stand: at even places or odd.
    """
    chances: list[float] = []
    places = [(start, start % 2) for start in range(1, found.shape[1] - length + 1, length)]
    for number in range(2):
        for parity, last in ((parity, last) for parity in range(2) for last in ALPHABET):
            texts = found[kinds == number]
            parts = [
                texts[texts[:, start - 1] == last, start : start + length] for start, odd in places if odd == parity
            ]
            if parts:
                before = (last,) * (2 - parity)
                chances.append(surprise(coded(torch.cat(parts)), distribution(number, before, length)))
    return chances


@pytest.mark.parametrize("verify", MODES)
def test_a_million_draws(verify: str) -> None:
    """Each alone, several that follow each other, and the first ones of every text."""
    found, kinds = long_texts(verify)
    assert found.numel() >= 1_000_000
    for length in (1, LENGTH - 1):
        assert min(chances := of_parts(found, kinds, length)) > 1e-4, chances
    assert min(chances := surprises(found[:, :LENGTH], kinds)[:2]) > 1e-4, chances


@pytest.mark.parametrize("verify", ["target_only", *MODES])
def test_texts_of_all_kinds(verify: str) -> None:
    """With every feature; what `target_only` writes is, token for token, what it writes at one shape."""
    plans = program(verify, features=True)
    found, kinds = write(plans, MOST // 2, at_random(plans))
    if verify == "target_only":
        assert torch.equal(found, written("chain", MOST)[0][: MOST // 2])
    assert min(chances := surprises(found, kinds)) > 1e-4, chances


def luckier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft is accepted as if it had been two percent less probable than it was."""
    less = torch.tensor([1.0, 1.0, 0.98])
    with_operands("sample.weigh", lambda given: [*given[:4], *(mass * less for mass in given[4:])])(monkeypatch)


def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next draft was drawn from is not stored by a step without drafts."""
    right = Step.decode

    def decode(self: Step, batch: Batch) -> StepResult:
        names = [name for name in self.pools if name.startswith(("draft_logits", "draft_mass"))]
        before = {name: self.pools[name].clone() for name in names}
        result = right(self, batch)
        for name in names if not self.shape.num_steps else ():
            self.pools[name].copy_(before[name])
        return result

    monkeypatch.setattr(Step, "decode", decode)


FAULTS: dict[str, Patch] = {"luckier": luckier, "whole": whole, "stale": stale}


@pytest.mark.parametrize("verify", MODES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bias_is_noticed(verify: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same test."""
    FAULTS[fault](monkeypatch)
    assert min(of_parts(*long_texts(verify), 1)) < 1e-6
