"""The choice of a shape: what it learns, when it changes, and that it is the best in the long run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from specc.runtime.capabilities.shape import UNTRIED, AcceptanceShape, FixedShape, ShapePolicy
from specc.runtime.plan.shape import Shape


def chains(*steps: int) -> list[Shape]:
    """Chains of so many drafts."""
    return [Shape(count, 1, count + 1) for count in steps]


def of_chains(steps: Sequence[int], **numbers: Any) -> AcceptanceShape:
    """A policy of chains, of which nodes cost nothing unless told."""
    buckets = sorted({1, *(bucket for by_bucket in (numbers.get("times") or {}).values() for bucket in by_bucket)})
    return AcceptanceShape(dict.fromkeys(chains(*steps), buckets), **{"node_cost": 0.0} | numbers)


def accept_len(random: Random, p: float, num_steps: int) -> int:
    """Tokens that one request commits when every draft is right with probability p."""
    length = 1
    while length <= num_steps and random.random() < p:
        length += 1
    return length


def run(policy: ShapePolicy, steps: int, lengths: Callable[[int], Sequence[int]]) -> list[int]:
    """The draft steps of so many steps; `lengths` are the accepted lengths of a step of so many draft steps."""
    chosen: list[int] = []
    for _ in range(steps):
        shape = policy.choose(2)
        policy.observe(shape, lengths(shape.num_steps))
        chosen.append(shape.num_steps)
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


def test_a_fixed_shape_learns_nothing() -> None:
    assert run(FixedShape(Shape(3, 1, 4)), 40, nothing) == [3] * 40


SOME = {
    Shape(5, 4, 24): (1, 2),
    Shape(3, 2, 8): (2, 4, 8),
    Shape(3, 1, 4): (1, 4, 8, 32),
    Shape(0, 1, 1): (32, 64),
}
"""Buckets of each shape."""


@pytest.mark.parametrize("shape", SOME)
def test_a_fixed_shape_makes_room_for_a_batch_that_it_does_not_hold(shape: Shape) -> None:
    policy = FixedShape(shape, SOME)
    for requests in range(1, 65):
        holding = sorted(shape for shape in SOME if max(SOME[shape]) >= requests)
        assert policy.choose(requests) == (shape if shape in holding else holding[-1])
    assert policy.choose(65) == shape, "which says that it does not hold so many"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("timed", [False, True])
def test_a_bucket_has_the_shapes_that_were_compiled_for_it_and_timed_there(seed: int, timed: bool) -> None:
    """Whatever is accepted, and the first is the deepest of them."""
    random = Random(seed)
    times = {shape: {bucket: random.uniform(1.0, 2.0) for bucket in sizes} for shape, sizes in SOME.items()}
    times[Shape(3, 1, 4)].pop(1)
    times[Shape(3, 2, 8)].pop(4)
    known = times if timed else SOME
    able = {bucket: {shape for shape in known if bucket in known[shape]} for bucket in (1, 2, 4, 8, 32, 64)}
    policy = AcceptanceShape(SOME, times=times if timed else None, patience=1, gain=0.0)
    assert {bucket: policy.choose(bucket) for bucket in able} == {bucket: max(able[bucket]) for bucket in able}
    seen: dict[int, set[Shape]] = {bucket: set() for bucket in able}
    for _ in range(3000):
        requests = random.randint(1, 64)
        shape = policy.choose(requests)
        seen[min(bucket for bucket in able if bucket >= requests)].add(shape)
        policy.observe(shape, [random.choice([1, shape.num_steps + 1])] * requests)
    assert all(seen[bucket] <= able[bucket] for bucket in able)


def test_a_time_counts_in_its_bucket_alone() -> None:
    """A shape that is fastest where it has a time is left where it has none."""
    chain, tree = Shape(3, 1, 4), Shape(3, 4, 16)
    times = {chain: {1: 9.0, 8: 9.0}, tree: {1: 1.0}}
    policy = AcceptanceShape(dict.fromkeys(times, (1, 8)), times=times)
    assert [policy.choose(requests) for requests in (1, 2, 8, 9)] == [tree, chain, chain, chain]


def test_it_starts_with_the_deepest_whatever_the_order() -> None:
    assert of_chains([3, 1, 5, 5]).choose(1) == Shape(5, 1, 6)


def test_one_shape_is_kept() -> None:
    assert run(of_chains([2]), 40, nothing) == [2] * 40


def test_it_goes_down_and_up_again() -> None:
    policy = of_chains([1, 3, 5])
    assert run(policy, 40, nothing)[-1] == 1
    assert run(policy, 200, everything)[-1] == 5


def test_it_goes_up_from_a_shape_whose_deeper_positions_are_forgotten() -> None:
    """First positions were always accepted, and later ones were never right, but that was long ago."""
    policy = of_chains([1, 5])
    assert run(policy, 60, lambda num_steps: [2, 2])[-1] == 1
    assert 5 in run(policy, 1000, everything)
    assert run(policy, 100, everything)[-1] == 5


def test_it_stays_as_long_as_patience_says() -> None:
    random = Random(5)
    policy = of_chains([1, 2, 5], patience=12, gain=0.0, window=2.0)
    chosen = run(policy, 600, lambda num_steps: [random.choice([1, num_steps + 1])])
    changes = [index for index, (shape, other) in enumerate(pairwise(chosen), start=1) if shape != other]
    assert len(changes) > 5
    assert min(later - earlier for earlier, later in pairwise([0, *changes])) == 12


def test_steps_of_nobody_do_not_count_as_patience() -> None:
    policy = of_chains([1, 5], patience=3)
    assert run(policy, 30, lambda num_steps: []) == [5] * 30
    assert run(policy, 5, nothing) == [5, 5, 5, 1, 1]


@pytest.mark.parametrize("step_cost", [0.05, 0.3, 2.0])
def test_it_changes_for_more_than_the_gain_and_for_nothing_less(step_cost: float) -> None:
    """The other depth promises a known part more: a gain just above it keeps the depth, one just below does not."""
    depths, changes = [1, 2, 4], 0
    for tokens in range(1, 6):
        chosen: list[int] = []
        rates = learned(of_chains(depths, step_cost=step_cost), tokens)
        by_depth = {depth: speed(rates, depth, step_cost) for depth in depths}
        best = max(by_depth, key=by_depth.__getitem__)
        promised = by_depth[best] / by_depth[4] - 1.0
        for gain in (promised * 0.99, promised * 1.01):
            policy = of_chains(depths, step_cost=step_cost, gain=gain, patience=0)
            learned(policy, tokens)
            chosen.append(policy.choose(2).num_steps)
        assert chosen == [best, 4]
        changes += best != 4
    assert changes >= 1


def learned(policy: AcceptanceShape, tokens: int) -> list[float]:
    """The rates after ten steps of the deepest that commit so many tokens."""
    for _ in range(10):
        policy.observe(Shape(4, 1, 5), [tokens, 1])
    return policy.rates()[1, 0]


@pytest.mark.parametrize("seed", range(5))
def test_rates_are_weighted_means_of_what_was_seen(seed: int) -> None:
    """Computed from the whole history: an observation of n steps ago weighs (1 - 1 / window) ** n.

    Steps that did not draft so far count for less.
    """
    random = Random(seed)
    window, pull = random.uniform(1.0, 40.0), random.uniform(0.1, 5.0)
    policy = of_chains([1, 2, 5], window=window, pull=pull)
    history: list[tuple[int, list[int]]] = []
    for _ in range(60):
        depth = random.choice([1, 2, 5])
        history.append((depth, [accept_len(random, 0.7, depth) for _ in range(random.randrange(4))]))
        policy.observe(Shape(depth, 1, depth + 1), history[-1][1])
        assert policy.rates()[1, 0] == pytest.approx(brute_force(history, window, pull))


def brute_force(history: list[tuple[int, list[int]]], window: float, pull: float) -> list[float]:
    """The rate of each of five positions; steps of no request are none."""
    steps = [(depth, lengths) for depth, lengths in history if lengths]
    rates, before = list[float](), 1.0
    for position in range(1, 6):
        tried = accepted = 0.0
        weight = 1.0
        for depth, lengths in reversed(steps):
            reached = [length for length in lengths if depth >= position and length >= position]
            tried += weight * len(reached)
            accepted += weight * sum(length >= position + 1 for length in reached)
            weight *= 1.0 - 1.0 / (window if depth >= position else UNTRIED * window)
        before = (accepted + pull * before) / (tried + pull)
        rates.append(before)
    return rates


@pytest.mark.parametrize("p", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("step_cost", [0.0, 0.02, 0.1, 0.4, 1.0])
def test_the_long_run_is_the_best_for_the_draft_and_the_machine(p: float, step_cost: float) -> None:
    """Most steps are of a depth that nothing beats by more than the gain, and a margin for noise."""
    depths, random = [1, 2, 3, 5, 8], Random(7)
    policy = of_chains(depths, step_cost=step_cost, window=128.0)
    chosen = run(policy, 2000, lambda num_steps: [accept_len(random, p, num_steps) for _ in range(16)])[500:]
    by_depth = {depth: speed([p] * depth, depth, step_cost) for depth in depths}
    good = {depth for depth, value in by_depth.items() if value * 1.08 >= max(by_depth.values())}
    assert sum(depth in good for depth in chosen) > 0.95 * len(chosen)


def test_drafts_that_are_never_right_are_left_out_and_tried_again() -> None:
    """A step without drafts tells nothing of drafts, so what was seen of them is forgotten in the end."""
    policy = of_chains([0, 2, 4])
    chosen = run(policy, 1000, nothing)[100:]
    assert 0.9 < chosen.count(0) / len(chosen) < 1.0
    assert run(policy, 2000, everything)[-1] == 4


BY_STEPS = {0: {1: 8.0, 8: 8.5, 64: 10.0}, 2: {1: 8.6, 8: 9.6, 64: 17.0}, 5: {1: 9.5, 8: 12.0, 64: 26.0}}
"""Milliseconds: a step with drafts costs little where it waits for weights, and much where it waits for products."""
TIMES = {shape: BY_STEPS[shape.num_steps] for shape in chains(0, 2, 5)}


@pytest.mark.parametrize("p", [0.15, 0.4, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("requests", [1, 7, 8, 40, 64, 90])
def test_every_batch_has_the_shape_that_its_times_make_best(p: float, requests: int) -> None:
    random, policy = Random(3), of_chains([0, 2, 5], times=TIMES, window=128.0)

    def lengths(num_steps: int) -> list[int]:
        return [accept_len(random, p, num_steps) for _ in range(requests)]

    chosen = list[int]()
    for _ in range(800):
        shape = policy.choose(requests)
        policy.observe(shape, lengths(shape.num_steps))
        chosen.append(shape.num_steps)
    bucket = min((size for size in (1, 8, 64) if size >= requests), default=64)
    by_depth = {depth: speed([p] * depth, depth, 0.0) / BY_STEPS[depth][bucket] for depth in (0, 2, 5)}
    good = {depth for depth, value in by_depth.items() if value * 1.08 >= max(by_depth.values())}
    assert sum(depth in good for depth in chosen[300:]) > 0.85 * len(chosen[300:])


def test_it_says_how_much_the_requests_are_expected_to_have() -> None:
    policy, untimed = of_chains([0, 2], times=TIMES), of_chains([0, 2])
    assert policy.expected is None
    for _ in range(200):
        assert policy.choose(7).num_steps == 2
        policy.observe(policy.choose(7), [3, 3, 1, 1])  # one draft in two, and the next whenever that is right
    assert policy.expected == pytest.approx(7 * (1 + 0.5 + 0.5) / BY_STEPS[2][8], rel=0.02)
    untimed.choose(7)
    assert untimed.expected is None


def test_a_batch_of_another_size_has_its_shape_at_once() -> None:
    """What was learnt at one size counts at the others, and patience is that of each size."""
    policy = of_chains([0, 2, 5], times=TIMES)
    for _ in range(200):
        for requests in (1, 64):
            shape = policy.choose(requests)
            policy.observe(shape, [min(shape.num_steps, 1) + 1] * requests)
    assert [policy.choose(requests).num_steps for requests in (1, 64, 1)] == [2, 2, 2]
    for _ in range(60):
        policy.observe(policy.choose(64), [1] * 64)
    assert policy.choose(64).num_steps == 0


MIXED_TIMES = {
    Shape(0, 1, 1): {1: 8.0, 64: 10.0},
    Shape(3, 1, 4): {1: 9.2, 64: 15.0},
    Shape(3, 4, 16): {1: 10.2, 64: 40.0},
    Shape(5, 4, 24): {1: 11.2, 64: 60.0},
}
"""Milliseconds of chains and trees: nodes are nearly free for one request, and cost as much as rows do for many."""
MIXED = dict.fromkeys(MIXED_TIMES, (1, 64))


@pytest.mark.parametrize(("narrow", "wide"), [(0.1, 0.2), (0.5, 0.55), (0.5, 0.85), (0.8, 0.95)])
@pytest.mark.parametrize("requests", [1, 64])
def test_trees_and_chains_change_places(narrow: float, wide: float, requests: int) -> None:
    """Whatever a second branch adds to what the first gets right."""
    random, policy = Random(11), AcceptanceShape(MIXED, times=MIXED_TIMES, window=128.0)
    rates, chosen = {1: narrow, 4: wide}, list[Shape]()
    for _ in range(1500):
        chosen.append(policy.choose(requests))
        steps, topk, *_ = chosen[-1]
        policy.observe(chosen[-1], [accept_len(random, rates[topk], steps) for _ in range(requests)])
    values = {
        shape: speed([rates[shape.topk]] * shape.num_steps, shape.num_steps, 0.0) / by_bucket[requests]
        for shape, by_bucket in MIXED_TIMES.items()
    }
    good = {shape for shape, value in values.items() if value * 1.08 >= max(values.values())}
    assert sum(shape in good for shape in chosen[500:]) > 0.85 * len(chosen[500:])


def test_a_width_that_nobody_drafts_is_expected_to_be_better_than_the_next_narrower() -> None:
    """By as much as a second draft would be: so it is tried, and soon left if it is not."""
    policy = AcceptanceShape(MIXED, times=MIXED_TIMES)
    for _ in range(400):
        policy.observe(Shape(3, 1, 4), [2, 1])
    rates = policy.rates()
    assert rates[1, 0][:2] == pytest.approx([0.5, 0.0], abs=0.04)
    tree = rates[min(kind for kind in rates if kind[0] == 4)]
    assert tree[:2] == pytest.approx([0.75, 0.0], abs=0.07)


def test_trees_of_more_nodes_have_rates_of_their_own() -> None:
    """Two trees of one width are not told apart by their branches: what one accepts says little of the other."""
    small, large = Shape(2, 4, 8), Shape(2, 4, 16)
    policy = AcceptanceShape(dict.fromkeys((small, large, Shape(2, 1, 3)), (1, 8)))
    for _ in range(400):
        policy.observe(small, [2, 1])
    assert policy.rates()[4, 8][0] == pytest.approx(0.5, abs=0.04)
    assert policy.rates()[4, 16][0] == pytest.approx(1 - 0.5**1.5, abs=0.04), "expected to miss less"
    for _ in range(400):
        policy.observe(large, [3, 3, 3, 1])
    assert policy.rates()[4, 16][0] == pytest.approx(0.75, abs=0.04)
    assert policy.rates()[4, 8][0] == pytest.approx(0.5, abs=0.2), "it is forgotten slowly"


@pytest.mark.parametrize(
    ("depths", "numbers"),
    [
        ([], {}),
        ([0], {}),
        ([-1, 2], {}),
        ([1], {"step_cost": -0.1}),
        ([1], {"node_cost": -0.1}),
        ([1], {"window": 0.0}),
        ([1], {"window": -1.0}),
        ([1], {"pull": 0.0}),
        ([1], {"gain": -0.01}),
        ([1], {"patience": -1}),
        ([0, 1], {"times": {}}),
        ([0, 1], {"times": {0: {}, 1: {}}}),
        ([0, 1], {"times": {5: {1: 1.0}}}),
        ([0, 1], {"times": {0: {1: 1.0}, 1: {1: 0.0}}}),
        ([0, 1], {"times": {0: {1: float("nan")}, 1: {1: 2.0}}}),
    ],
)
def test_nonsense_is_refused(depths: list[int], numbers: dict[str, Any]) -> None:
    if isinstance(times := numbers.get("times"), dict):
        numbers = {"times": {Shape(depth, 1, depth + 1): by_bucket for depth, by_bucket in times.items()}}
    with pytest.raises(ValueError, match=r"a shape drafts|are not below 0|times are"):
        of_chains(depths, **numbers)
