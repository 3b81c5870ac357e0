"""The attack finds what is wrong with a head that a program computes: each fault, planted, is a failure."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specc.runtime.capabilities import draft_tables
from specc.runtime.plan.draft_head import SCALE, WEIGHT
from specc.runtime.semantics import head, reference

from . import legal
from .test_planted import Patch, failures, op, taken

SEED = "heads"
"""A seed of its own, for its programs are kept, and have a head wherever they may."""
Made = dict[str, Tensor]


def tables(wrong: Callable[[Made, Tensor, Tensor | None], Made]) -> Patch:
    """Weights and what they are worth, that ``wrong`` makes of the right ones, and of the engine's head and map."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = draft_tables.head_tables
        monkeypatch.setattr(draft_tables, "head_tables", lambda plan, *given: wrong(right(plan, *given), *given[:2]))

    return patch


def without_scales(made: Made, *_: object) -> Made:
    """Every number of 8 bits is worth 1."""
    return {name: torch.ones_like(table) if name == SCALE else table for name, table in made.items()}


def first_entries(made: Made, given: Tensor, tokens: Tensor | None) -> Made:
    """The first entries of the engine's head, whichever are scored."""
    return {WEIGHT: given[: len(made[WEIGHT])].clone()} if SCALE not in made and tokens is not None else made


def towards_zero(made: Made, given: Tensor, tokens: Tensor | None) -> Made:
    """Weights of 8 bits that are cut off."""
    if made[WEIGHT].dtype != torch.int8 or len(given) != len(made[WEIGHT]):
        return made
    return {**made, WEIGHT: (given.float() / made[SCALE][:, None]).trunc().to(torch.int8)}


def of_the_first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank reads the entries of the first one."""
    right = draft_tables.head_tables
    monkeypatch.setattr(draft_tables, "head_tables", lambda plan, head, tokens, _: right(plan, head, tokens, 0))


def states_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that reads the rows of the request before."""
    right = head.head_logits

    def wrong(operands: tuple[Tensor, ...], *rest: object) -> tuple[Tensor, ...]:
        states, *weights = operands
        return right((states.roll(1, 0), *weights), *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(head, "head_logits", wrong)
    monkeypatch.setitem(reference.OPS, "head.logits", wrong)


PARTS = ("head.argmax_part", "head.topk_part")
HEADS: dict[str, tuple[str, Patch]] = {
    "entries": ("steps", tables(lambda made, *_: {**made, WEIGHT: made[WEIGHT].roll(1, 0)})),
    "map": ("steps", tables(first_entries)),
    "rank": ("steps", of_the_first_rank),
    "scales": ("steps", tables(without_scales)),
    "rounding": ("steps", tables(towards_zero)),
    "largest": ("steps", taken(draft_tables, "LARGEST", {"i8": 120.0, "f8": 384.0})),
    "states": ("steps", states_of_the_next),
    "stored": ("shapes", op("head.logits", wrong=lambda _, results: (results[0].roll(1, 0),))),
    "parts": ("steps", op(*PARTS, wrong=lambda _, results: (torch.cat((results[0][:1], results[0][:-1])),))),
    "masses": ("shapes", taken(head, "exp_below", lambda scores, top: (scores == top).float())),
    "marks": ("steps", op(PARTS[0], wrong=lambda _, results: (results[0] & ~1,))),
}


@pytest.mark.parametrize("fault", HEADS)
def test_heads(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legal, "HEADS", 1.0)
    name, plant = HEADS[fault]
    plant(monkeypatch)
    assert failures(name, 60, SEED)
