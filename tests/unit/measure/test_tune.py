"""The search, with times that are made here: what it takes, what it leaves alone, and what it writes."""

from __future__ import annotations

import torch

from specc.measure.tuned import tune

from .conftest import CHAIN, Clock, load

CPU = torch.device("cpu")


def search(text: str, seconds: float = 60.0):
    return tune(load(text), CPU, seconds, lambda what, part: None)


def by_launch(found):
    return {choice.launch: choice for one in found.found for choice in one.choices}


def test_nothing_is_chosen_where_nothing_is_faster(clock: Clock) -> None:
    found = search(CHAIN)
    assert found.tuning.choices == () and found.steps == {}
    assert clock.asked > 100


def test_a_tile_that_is_faster_is_taken_for_all_launches_of_a_kernel(clock: Clock) -> None:
    clock.cost = lambda name, tile, warps, *_: 0.5 if (tile, warps) == (1024, 8) and "argmax" in name else 1.0
    found = by_launch(search(CHAIN))
    assert found.keys() == {"draft_argmax", "verify_argmax", "extend_argmax"}
    assert {(one.tile, one.warps) for one in found.values()} == {(1024, 8)}


def test_a_split_is_of_a_bucket(clock: Clock) -> None:
    clock.cost = lambda name, tile, warps, bucket, y: 0.5 if (name, bucket, y) == ("draft_argmax", 4, 2) else 1.0
    (choice,) = search(CHAIN).tuning.choices
    assert (choice.launch, choice.tile, choice.warps, choice.split) == ("draft_argmax", None, None, {4: 2})
