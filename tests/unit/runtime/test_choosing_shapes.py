"""The choice of a depth: what it learns, when it changes, and that it is the best in the long run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from specc.runtime.capabilities.shape import AcceptanceShape, FixedShape, ShapePolicy


def accept_len(random: Random, p: float, num_steps: int) -> int:
    """Tokens that one request commits when every draft is right with probability p."""
    length = 1
    while length <= num_steps and random.random() < p:
        length += 1
    return length


def run(policy: ShapePolicy, steps: int, lengths: Callable[[int], Sequence[int]]) -> list[int]:
    """The depths of so many steps; `lengths` are the accepted lengths of a step of a depth."""
    chosen: list[int] = []
    for _ in range(steps):
        chosen.append(policy.choose(2))
        policy.observe(chosen[-1], lengths(chosen[-1]))
    return chosen


def nothing(num_steps: int) -> list[int]:
    return [1, 1]


def everything(num_steps: int) -> list[int]:
    return [num_steps + 1] * 2


def speed(rates: Sequence[float], num_steps: int, step_cost: float) -> float:
    """Tokens per time of a step without drafts: the mean over how many drafts are accepted, by its definition."""
    tokens = 0.0
    for accepted in range(num_steps + 1):
        p = 1.0 if accepted == num_steps else 1.0 - rates[accepted]
        for rate in rates[:accepted]:
            p *= rate
        tokens += p * (accepted + 1)
    return tokens / (1.0 + step_cost * num_steps)


def test_a_fixed_depth_learns_nothing() -> None:
    assert run(FixedShape(3), 40, nothing) == [3] * 40


def test_it_starts_with_the_deepest_whatever_the_order() -> None:
    assert AcceptanceShape([3, 1, 5, 5]).choose(1) == 5


def test_one_depth_is_kept() -> None:
    assert run(AcceptanceShape([2]), 40, nothing) == [2] * 40


def test_it_goes_down_and_up_again() -> None:
    policy = AcceptanceShape([1, 3, 5])
    assert run(policy, 40, nothing)[-1] == 1
    assert run(policy, 200, everything)[-1] == 5


def test_it_goes_up_from_a_depth_whose_deeper_positions_are_forgotten() -> None:
    """First positions were always accepted, and later ones were never right, but that was long ago."""
    policy = AcceptanceShape([1, 5])
    assert run(policy, 60, lambda num_steps: [2, 2])[-1] == 1
    assert 5 in run(policy, 1000, everything)
    assert run(policy, 100, everything)[-1] == 5


def test_it_stays_as_long_as_patience_says() -> None:
    random = Random(5)
    policy = AcceptanceShape([1, 2, 5], patience=12, gain=0.0, window=2.0)
    chosen = run(policy, 600, lambda num_steps: [random.choice([1, num_steps + 1])])
    changes = [index for index, (one, other) in enumerate(pairwise(chosen), start=1) if one != other]
    assert len(changes) > 5
    assert min(later - earlier for earlier, later in pairwise([0, *changes])) == 12


def test_steps_of_nobody_do_not_count_as_patience() -> None:
    policy = AcceptanceShape([1, 5], patience=3)
    assert run(policy, 30, lambda num_steps: []) == [5] * 30
    assert run(policy, 5, nothing) == [5, 5, 5, 1, 1]


@pytest.mark.parametrize("step_cost", [0.05, 0.3, 2.0])
def test_it_changes_for_more_than_the_gain_and_for_nothing_less(step_cost: float) -> None:
    """The other depth promises a known part more: a gain just above it keeps the depth, one just below does not."""
    depths, changes = [1, 2, 4], 0
    for tokens in range(1, 6):
        chosen: list[int] = []
        rates = learned(AcceptanceShape(depths, step_cost=step_cost), tokens)
        by_depth = {depth: speed(rates, depth, step_cost) for depth in depths}
        best = max(by_depth, key=by_depth.__getitem__)
        promised = by_depth[best] / by_depth[4] - 1.0
        for gain in (promised * 0.99, promised * 1.01):
            policy = AcceptanceShape(depths, step_cost=step_cost, gain=gain, patience=0)
            learned(policy, tokens)
            chosen.append(policy.choose(2))
        assert chosen == [best, 4]
        changes += best != 4
    assert changes >= 1


def learned(policy: AcceptanceShape, tokens: int) -> list[float]:
    """The rates after ten steps of the deepest that commit so many tokens."""
    for _ in range(10):
        policy.observe(4, [tokens, 1])
    return policy.rates()


@pytest.mark.parametrize("seed", range(5))
def test_rates_are_weighted_means_of_what_was_seen(seed: int) -> None:
    """Computed from the whole history: an observation of n steps ago weighs (1 - 1 / window) ** n."""
    random = Random(seed)
    window, pull = random.uniform(1.0, 40.0), random.uniform(0.1, 5.0)
    policy = AcceptanceShape([1, 2, 5], window=window, pull=pull)
    history: list[tuple[int, list[int]]] = []
    for _ in range(60):
        depth = random.choice([1, 2, 5])
        history.append((depth, [accept_len(random, 0.7, depth) for _ in range(random.randrange(4))]))
        policy.observe(*history[-1])
        assert policy.rates() == pytest.approx(brute_force(history, window, pull))


def brute_force(history: list[tuple[int, list[int]]], window: float, pull: float) -> list[float]:
    """The rate of each of five positions; steps of no request are none."""
    steps = [(depth, lengths) for depth, lengths in history if lengths]
    rates, before = list[float](), 1.0
    for position in range(1, 6):
        tried = accepted = 0.0
        for age, (depth, lengths) in enumerate(reversed(steps)):
            weight = (1.0 - 1.0 / window) ** age
            reached = [length for length in lengths if depth >= position and length >= position]
            tried += weight * len(reached)
            accepted += weight * sum(length >= position + 1 for length in reached)
        before = (accepted + pull * before) / (tried + pull)
        rates.append(before)
    return rates


@pytest.mark.parametrize("p", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("step_cost", [0.0, 0.02, 0.1, 0.4, 1.0])
def test_the_long_run_is_the_best_for_the_draft_and_the_machine(p: float, step_cost: float) -> None:
    """Most steps are of a depth that nothing beats by more than the gain, and a margin for noise."""
    depths, random = [1, 2, 3, 5, 8], Random(7)
    policy = AcceptanceShape(depths, step_cost=step_cost, window=128.0)
    chosen = run(policy, 2000, lambda num_steps: [accept_len(random, p, num_steps) for _ in range(16)])[500:]
    by_depth = {depth: speed([p] * depth, depth, step_cost) for depth in depths}
    good = {depth for depth, value in by_depth.items() if value * 1.08 >= max(by_depth.values())}
    assert sum(depth in good for depth in chosen) > 0.95 * len(chosen)


def test_drafts_that_are_never_right_are_left_out_and_tried_again() -> None:
    """A step without drafts tells nothing of drafts, so what was seen of them is forgotten in the end."""
    policy = AcceptanceShape([0, 2, 4])
    chosen = run(policy, 1000, nothing)[100:]
    assert 0.75 < chosen.count(0) / len(chosen) < 1.0
    assert run(policy, 300, everything)[-1] == 4


TIMES = {0: {1: 8.0, 8: 8.5, 64: 10.0}, 2: {1: 8.6, 8: 9.6, 64: 17.0}, 5: {1: 9.5, 8: 12.0, 64: 26.0}}
"""Milliseconds: a step with drafts costs little where it waits for weights, and much where it waits for products."""


@pytest.mark.parametrize("p", [0.15, 0.4, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("requests", [1, 7, 8, 40, 64, 90])
def test_every_batch_has_the_depth_that_its_times_make_best(p: float, requests: int) -> None:
    random, policy = Random(3), AcceptanceShape([0, 2, 5], times=TIMES, window=128.0)

    def lengths(num_steps: int) -> list[int]:
        return [accept_len(random, p, num_steps) for _ in range(requests)]

    chosen = list[int]()
    for _ in range(800):
        chosen.append(policy.choose(requests))
        policy.observe(chosen[-1], lengths(chosen[-1]))
    bucket = min((size for size in (1, 8, 64) if size >= requests), default=64)
    by_depth = {depth: speed([p] * depth, depth, 0.0) / TIMES[depth][bucket] for depth in (0, 2, 5)}
    good = {depth for depth, value in by_depth.items() if value * 1.08 >= max(by_depth.values())}
    assert sum(depth in good for depth in chosen[300:]) > 0.85 * len(chosen[300:])


def test_a_batch_of_another_size_has_its_depth_at_once() -> None:
    """What was learnt at one size counts at the others, and patience is that of each size."""
    policy = AcceptanceShape([0, 2, 5], times=TIMES)
    for _ in range(200):
        for requests in (1, 64):
            num_steps = policy.choose(requests)
            policy.observe(num_steps, [min(num_steps, 1) + 1] * requests)
    assert (policy.choose(1), policy.choose(64), policy.choose(1)) == (2, 2, 2)
    for _ in range(60):
        policy.observe(policy.choose(64), [1] * 64)
    assert policy.choose(64) == 0


@pytest.mark.parametrize(
    ("depths", "numbers"),
    [
        ([], {}),
        ([0], {}),
        ([-1, 2], {}),
        ([1], {"step_cost": -0.1}),
        ([1], {"window": 0.0}),
        ([1], {"window": -1.0}),
        ([1], {"pull": 0.0}),
        ([1], {"gain": -0.01}),
        ([1], {"patience": -1}),
        ([0, 1], {"times": {}}),
        ([0, 1], {"times": {0: {}, 1: {}}}),
        ([0, 1], {"times": {0: {1: 1.0}}}),
        ([0, 1], {"times": {0: {1: 1.0}, 1: {1: 2.0, 2: 2.0}}}),
        ([0, 1], {"times": {0: {1: 1.0}, 1: {1: 0.0}}}),
        ([0, 1], {"times": {0: {1: float("nan")}, 1: {1: 2.0}}}),
    ],
)
def test_nonsense_is_refused(depths: list[int], numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"depths go from 0|are not below 0|times are"):
        AcceptanceShape(depths, **numbers)
