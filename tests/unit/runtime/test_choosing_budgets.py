"""A budget is chosen by what drafts promise and how long steps take: the policy against plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from specc.runtime import AcceptanceShape, ConfidenceShape
from specc.runtime.capabilities.budgets.confidence import UNSEEN
from specc.runtime.plan.shape import Shape, shapes_expected

EVERY, THREE, TWO, SHORT, NONE = Shape(4, 1, 5), Shape(4, 1, 5, 3), Shape(4, 1, 5, 2), Shape(2, 1, 3, 2), Shape(0, 1, 1)
SHAPES = EVERY, THREE, TWO, SHORT, NONE
BUCKETS = dict.fromkeys(SHAPES, (1, 8))
TIMES = {shape: {1: 10.0 + shape.num_steps, 8: 10.0 + shape.num_steps + 8 * shape.rows} for shape in SHAPES}
Promise = Callable[[Shape], float]


def expected(ran: Shape, promise: Promise, requests: int = 1) -> list[list[float]]:
    """The output of a step: for every request a number for each shape of no more drafts, ascending."""
    return [[promise(shape) for shape in sorted(SHAPES) if shape.num_steps <= ran.num_steps] for _ in range(requests)]


def run(policy: ConfidenceShape, steps: int, promise: Promise, requests: int = 8) -> list[Shape]:
    """What is chosen for so many steps, each of which says what shapes promise."""
    chosen: list[Shape] = []
    for _ in range(steps):
        chosen.append(policy.choose(requests))
        policy.observe(chosen[-1], [1] * requests)
        if chosen[-1].num_steps:
            policy.expect(chosen[-1], expected(chosen[-1], promise, requests))
    return chosen


def likely(p: float) -> Promise:
    """Every draft is accepted with a probability; a budget has the likelier half of what it leaves out."""

    def tokens(shape: Shape) -> float:
        every = sum(p**place for place in range(shape.num_steps + 1))
        return every * (1.0 if shape.budget is None else 0.5 + 0.5 * shape.rows / shape.num_nodes)

    return tokens


def test_columns_are_shapes_of_no_more_drafts() -> None:
    assert shapes_expected(SHAPES, EVERY) == [NONE, SHORT, TWO, THREE, EVERY]
    assert shapes_expected(SHAPES, TWO) == [NONE, SHORT, TWO, THREE, EVERY]
    assert shapes_expected(SHAPES, SHORT) == [NONE, SHORT]


@pytest.mark.parametrize("requests", [1, 8])
@pytest.mark.parametrize("p", [0.05, 0.3, 0.6, 0.95])
def test_the_most_tokens_per_time(p: float, requests: int) -> None:
    """After the steps that a change takes, unless the first shape is within the gain of the best."""
    promise = likely(p)
    speeds = {shape: promise(shape) / TIMES[shape][requests] for shape in SHAPES}
    best = max(speeds, key=speeds.__getitem__)
    policy = ConfidenceShape(BUCKETS, times=TIMES)
    chosen = run(policy, 40, promise, requests)
    assert chosen[0] == EVERY, "which every bucket begins with"
    assert chosen[-1] == (best if speeds[best] > 1.03 * speeds[EVERY] else EVERY)
    assert len(dict.fromkeys(chosen)) <= 2
    assert policy.expected == pytest.approx(requests * speeds[chosen[-1]])


def test_both_ends_of_the_load_are_met() -> None:
    assert run(ConfidenceShape(BUCKETS, times=TIMES), 40, likely(0.6), 1)[-1] == EVERY
    assert run(ConfidenceShape(BUCKETS, times=TIMES), 40, likely(0.6), 8)[-1].rows < 5


def test_a_change_takes_patience() -> None:
    """The first choice knows nothing, and eight that prefer the same shape are needed in a row."""
    policy = ConfidenceShape({EVERY: (8,), TWO: (8,)}, times={EVERY: {8: 10.0}, TWO: {8: 5.0}}, patience=8)

    def step(tokens: float) -> Shape:
        shape = policy.choose(8)
        policy.expect(shape, [[tokens, 4.0]] * 8)
        return shape

    assert [step(3.0) for _ in range(9)] == [EVERY] * 8 + [TWO]
    assert {step(1.0) for _ in range(8)} == {TWO}
    assert step(1.0) == EVERY
    assert {step(3.0) for _ in range(8)} == {EVERY}, "seven are no eight"
    step(2.04)
    assert {step(3.0) for _ in range(7)} <= {EVERY, TWO}


@pytest.mark.parametrize(("tokens", "taken"), [(2.05, False), (2.07, True)])
def test_a_change_takes_a_gain(tokens: float, taken: bool) -> None:
    policy = ConfidenceShape({EVERY: (8,), TWO: (8,)}, times={EVERY: {8: 10.0}, TWO: {8: 5.0}})
    for _ in range(30):
        policy.expect(policy.choose(8), [[tokens, 4.0]])
    assert (policy.choose(8) == TWO) is taken


def test_rivals_that_take_turns_change_nothing() -> None:
    policy = ConfidenceShape({EVERY: (8,), THREE: (8,), TWO: (8,)}, gain=0.0, node_cost=0.0, step_cost=0.0)
    for number in range(60):
        shape = policy.choose(8)
        assert shape == EVERY
        policy.expect(shape, [[3.0, 3.5, 2.0] if number % 2 else [3.5, 3.0, 2.0]])


@pytest.mark.parametrize("left", [SHORT, NONE])
def test_longer_chains_are_looked_at_now_and_then(left: Shape) -> None:
    """For one step, when nothing was said of them for long; what it says is believed."""
    times = {shape: {8: 1.0 if shape == left else 100.0} for shape in SHAPES}
    policy = ConfidenceShape(dict.fromkeys(SHAPES, (8,)), times=times)
    chosen = run(policy, 4 * UNSEEN, lambda _: 1.0)
    looks = [number for number, shape in enumerate(chosen) if shape == EVERY and number > 20]
    assert len(looks) == 3
    assert {after - before for before, after in pairwise(looks)} == {UNSEEN + 1}
    assert set(chosen[20:]) == {left, EVERY}


def test_a_bucket_has_a_choice_of_its_own() -> None:
    """Among the shapes that were compiled for it and timed there."""
    buckets = {EVERY: (1,), TWO: (1, 8), NONE: (8,)}
    policy = ConfidenceShape(buckets, times={shape: dict.fromkeys(sizes, 1.0) for shape, sizes in buckets.items()})
    assert [policy.choose(requests) for requests in (1, 5, 8, 9)] == [EVERY, TWO, TWO, TWO]
    policy.expect(TWO, [[1.0, 1.0, 1.0]])
    assert policy.choose(8) == TWO
    with pytest.raises(ValueError, match="there is none of 8"):
        ConfidenceShape(buckets, times={EVERY: {1: 1.0}, TWO: {1: 1.0}})


@pytest.mark.parametrize("seed", range(8))
def test_without_times_rows_and_draft_steps_cost(seed: int) -> None:
    """Whatever is promised, what is left is the best by the model of costs, or the first within the gain of it."""
    random = Random(seed)
    promised = {shape: random.uniform(1.0, shape.rows) for shape in SHAPES}
    step_cost, node_cost, requests = random.uniform(0, 0.3), random.uniform(0, 0.05), random.randint(1, 8)
    policy = ConfidenceShape(BUCKETS, step_cost=step_cost, node_cost=node_cost)
    last = run(policy, 60, promised.__getitem__, requests)[-1]
    speeds = {
        shape: tokens / (1 + step_cost * shape.num_steps + node_cost * requests * (shape.rows - 1))
        for shape, tokens in promised.items()
    }
    assert max(speeds.values()) <= 1.03 * speeds[last]
    assert policy.expected is None


def test_requests_count_alike() -> None:
    policy = ConfidenceShape({EVERY: (8,), TWO: (8,)}, times={EVERY: {8: 1.0}, TWO: {8: 1.0}})
    policy.choose(2)
    policy.expect(EVERY, [[1.0, 4.0], [2.0, 2.0]])
    policy.expect(EVERY, [])
    policy.choose(2)
    assert policy.expected == pytest.approx(2 * 3.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"buckets": {}}, "there is a shape"),
        ({"gain": -0.1}, "below 0"),
        ({"node_cost": -1.0}, "below 0"),
        ({"patience": 0}, "patience is above"),
    ],
)
def test_numbers_that_make_no_sense(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConfidenceShape(**{"buckets": BUCKETS, **given})


def test_acceptance_does_not_tell_budgets_apart() -> None:
    with pytest.raises(ValueError, match="differ in their rows alone"):
        AcceptanceShape(BUCKETS)
