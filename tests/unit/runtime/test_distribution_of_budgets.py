"""Texts are distributed as the target's where it has rows for some of the drafts that were drawn, others in every step.

A draft may not decide whether it is judged, and one that is not judged takes nothing away: both are planted here. Nor
may the same noise do so in a request beside it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from fakes.markov import MarkovEngine
from test_distribution import (
    ALPHABET,
    FEWER,
    KINDS,
    LENGTH,
    MOST,
    REDUCED,
    VOCAB,
    Patch,
    Turns,
    bind,
    emitted,
    plans_of,
    say,
    surprise,
    surprises,
    whole,
    write,
)
from test_distribution_of_shapes import LONG, MODES, ROWS, at_random, luckier, of_parts, plain, too_fond
from torch import Tensor

from specc.runtime.plan.plan import Plan
from specc.runtime.semantics.reference import OPS

ONE: dict[str, Any] = {"num_steps": 3, "budget": 2}
SEVERAL: dict[str, Any] = {"shapes": [{"num_steps": 4, "budget": [2, 3, "all"]}, {"num_steps": 2, "budget": [2]}]}
SMALL = 64
"""Requests of a small batch."""


@cache
def program(verify: str, *, several: bool) -> tuple[Plan, ...]:
    """A program of requests that have a temperature and nothing else."""
    return plans_of(ROWS, verify=verify, sampling=[], **(SEVERAL if several else ONE))


def in_small_batches(plans: Sequence[Plan]) -> Turns:
    """A few requests at a time: what one has drawn decides much of what others are judged by."""
    return lambda at: [(plans[0].shape, some) for some in at.split(SMALL)]


def texts(verify: str, count: int = MOST) -> tuple[Tensor, Tensor]:
    """Texts of a program with one budget, and the kinds of who wrote them."""
    return write(program(verify, several=False), count, None, ROWS, LONG, plain, too_fond())


def check(found: Tensor, kinds: Tensor) -> None:
    """Each token alone, several that follow each other, and the first ones of every text."""
    for length in (1, LENGTH - 1):
        assert min(chances := of_parts(found, kinds, length)) > 1e-4, chances
    assert min(chances := surprises(found[:, :LENGTH], kinds)[:2]) > 1e-4, chances


@pytest.mark.parametrize("verify", MODES)
def test_a_million_draws(verify: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of requests that have from no draft judged to all of them, at two temperatures."""
    judged, right = Counter[int](), OPS["budget.take"]

    def take(*given: Any) -> Any:
        shared = right(*given)
        judged.update((shared[0] - 1).tolist())
        return shared

    monkeypatch.setitem(OPS, "budget.take", take)
    found, kinds = texts(verify)
    assert found.numel() >= 1_000_000
    check(found, kinds)
    assert set(judged) == {0, 1, 2, 3}
    assert min(judged.values()) > judged.total() / 20, judged


@pytest.mark.parametrize("verify", MODES)
def test_budgets_change(verify: str) -> None:
    """In every step anew, for every half of a batch: to longer chains, and to a row for every draft."""
    plans = program(verify, several=True)
    check(*write(plans, MOST, at_random(plans), ROWS, LONG, plain, too_fond()))


@pytest.mark.parametrize("verify", MODES)
def test_a_few_requests_share_rows(verify: str) -> None:
    plans = program(verify, several=False)
    check(*write(plans, ROWS, in_small_batches(plans), ROWS, LONG, plain, too_fond()))


@pytest.mark.parametrize("verify", MODES)
@pytest.mark.parametrize("draft", [{}, REDUCED], ids=["all", "a part"])
def test_texts_of_all_kinds(verify: str, draft: dict[str, Any]) -> None:
    """With every feature alone, and with all of them; of drafts of all tokens, or a part."""
    found, kinds = write(plans_of(ROWS, verify=verify, **ONE, **draft), MOST // 2)
    assert min(chances := surprises(found, kinds)) > 1e-4, chances


def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft has a row if it is probable itself: who looks at it before it is judged throws improbable ones away."""
    monkeypatch.setitem(OPS, "budget.largest", lambda given, *_: (given[0][..., 2, None],))


def from_unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that has no row counts as rejected: the token after the last one that has is drawn from p - q."""
    monkeypatch.setitem(OPS, "budget.judged", lambda given, *_: given[:1])


def without_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token after the last draft that has a row is drawn without the one that has none."""
    cut, drawn, left = OPS["budget.cut"], list[Tensor](), OPS["sample.residual"]

    def note(given: Any, *rest: Any) -> Any:
        drawn[:] = given[:1]
        return cut(given, *rest)

    monkeypatch.setitem(OPS, "budget.cut", note)
    monkeypatch.setitem(OPS, "sample.residual", lambda given, *rest: left((*drawn, *given[1:]), *rest))


FAULTS: dict[str, Patch] = {
    "own": own,
    "from unjudged": from_unjudged,
    "without the draft": without_the_draft,
    "whole": whole,
    "luckier": luckier,
}


@pytest.mark.parametrize("verify", MODES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bias_is_noticed(verify: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same test, of a quarter of the texts; the last is two percent."""
    FAULTS[fault](monkeypatch)
    assert min(of_parts(*texts(verify, FEWER), 1)) < 1e-6


FIRST, OTHER, *LAST = ALPHABET
SAYS = torch.full((2, VOCAB, VOCAB), -math.inf)
"""Logits of target and draft: FIRST is a little more probable, but sure to be followed by what is sure itself."""
SAYS[..., [FIRST, OTHER]] = torch.tensor([1.0, 0.0])
SAYS[:, FIRST] = torch.where(torch.arange(VOCAB) == LAST[0], 0.0, -math.inf)
SAYS[:, OTHER] = torch.where(torch.isin(torch.arange(VOCAB), torch.tensor(LAST)), 0.0, -math.inf)


def in_pairs(operands: Sequence[Tensor], _: object, dims: dict[str, int]) -> tuple[Tensor, Tensor]:
    """`budget.take` where every two requests, one after the other, share the rows of both among themselves."""
    by_place = operands[0].view(-1, 2, dims["S"]).transpose(1, 2).flatten(1)
    best = by_place.argsort(dim=1, descending=True, stable=True)[:, : 2 * (dims["G"] - 1)]
    taken = torch.zeros_like(by_place, dtype=torch.int64).scatter(1, best, 1)
    lens = 1 + taken.view(-1, dims["S"], 2).sum(1).flatten()
    return lens.int(), (lens.cumsum(0) - lens).int()


@pytest.mark.parametrize("verify", MODES)
def test_two_requests_of_one_seed_are_not_exact(verify: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where their roots stand at one position: the second of a pair is judged by what the first has drawn.

    The first is the colder, and surer of FIRST. If it draws that, it has all rows of the pair; if not, then the second
    has drawn OTHER by the same noise, and has a row for it. With seeds of their own both write what the target says.
    """
    monkeypatch.setitem(OPS, "budget.take", in_pairs)
    kinds, alike = plain(ROWS), (lambda prompt, _, *more: MarkovEngine(prompt, SAYS, *more))
    engine = bind(program(verify, several=False), kinds, SAYS, alike)
    chances: list[list[float]] = []
    for each in (1, 2):
        say(engine, kinds, torch.arange(ROWS) // each)
        token = emitted(engine, ROWS, steps=1)[0][:, 1]
        p = [(torch.tensor([1.0, 0.0]) / KINDS[kind].sampling.temperature).softmax(0) for kind in range(2)]
        chances.append([surprise((token[kind::2] == OTHER).long(), p[kind].double()) for kind in range(2)])
    assert min(chances[0]) > 1e-4, chances
    assert chances[1][0] > 1e-4 and chances[1][1] < 1e-6, chances
