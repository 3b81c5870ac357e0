"""Texts are distributed as the target's where it has rows for some of the drafts that were drawn, others in every step.

A draft may not decide whether it is judged, and one that is not judged takes nothing away: both are planted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from test_distribution import FEWER, LENGTH, MOST, REDUCED, Patch, Turns, plans_of, surprises, whole, write
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
