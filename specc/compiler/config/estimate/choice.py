"""Which shapes a configuration should have, and in which buckets: few of them, each with why in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from specc.compiler.config.estimate.lengths import RATE, expected_tokens
from specc.runtime.plan.shape import Shape

GAIN = 0.05
"""How much faster than all others a shape must be in some bucket, relative: a policy changes for no less."""
OF_USE = 0.10
"""How much slower than the best of a bucket a shape may be that is compiled there, too: texts differ, and policies
learn."""
TREES = (Shape(3, 2, 8), Shape(3, 4, 16), Shape(5, 4, 16), Shape(5, 4, 24), Shape(7, 4, 32))
"""Trees to choose from where nobody says which."""
LONGEST = 7
"""Drafts of the longest chain to choose from, where nobody says which."""
MOST_SHAPES = 16
"""Shapes that a configuration may have."""


@dataclass(frozen=True)
class ProposedShape:
    """A shape, the buckets in which it is of use, those in which it is the best, all ascending, and why it is there."""

    shape: Shape
    buckets: tuple[int, ...]
    best: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class Estimate:
    """What is expected of a step: ``ms`` of a shape in a bucket, and how often a draft is right."""

    ms: Callable[[Shape, int], float]
    rate: float = RATE

    def tokens(self, shape: Shape) -> float:
        """Return the tokens that it commits of every request."""
        return expected_tokens(shape, self.rate)

    def speed(self, shape: Shape, bucket: int) -> float:
        """Return the tokens a millisecond that it commits of every request."""
        return self.tokens(shape) / self.ms(shape, bucket)


def candidates(steps: Iterable[int], most_nodes: Callable[[int, int], int] | None, least: int = 0) -> list[Shape]:
    """Return the shapes to choose from: chains of up to so many steps, and trees that have so many nodes.

    Args:
        steps: the numbers of drafts that there may be.
        most_nodes: the most nodes of a tree, from topk and steps; None where there are no trees.
        least: the smallest number of drafts.

    """
    known = set(steps)
    chains = [Shape(number, 1, number + 1) for number in sorted(known) if least <= number <= LONGEST]
    trees = [] if most_nodes is None else [s for s in TREES if most_nodes(s.topk, s.num_steps) >= s.num_nodes]
    return chains + [tree for tree in trees if tree.num_steps in known]


def choose(
    shapes: Sequence[Shape], buckets: Sequence[int], estimate: Estimate, most: int = MOST_SHAPES
) -> list[ProposedShape]:
    """Return few shapes that are within `GAIN` of the best of all in every bucket, the deepest first.

    The one that is the best compromise is taken first, then whatever gains most beside those that are there. Those that
    can be left out again are.

    Args:
        shapes: to choose from; one of them drafts.
        buckets: batch sizes, ascending.
        estimate: what is expected of them.
        most: shapes that there may be.

    """
    speeds = {shape: {bucket: estimate.speed(shape, bucket) for bucket in buckets} for shape in shapes}
    chosen: list[Shape] = []
    while len(chosen) < most and (not chosen or _shortfall(speeds, chosen) > GAIN):
        chosen.append(max(shapes, key=lambda shape: _mean(speeds, [*chosen, shape], buckets)))
    if not any(shape.num_steps for shape in chosen):
        drafting = [shape for shape in shapes if shape.num_steps]
        chosen.append(max(drafting, key=lambda shape: _mean(speeds, [shape], buckets)))
    for shape in tuple(chosen):
        rest = [other for other in chosen if other != shape]
        if any(other.num_steps for other in rest) and _shortfall(speeds, rest) <= GAIN:
            chosen = rest
    return [_proposed(shape, chosen, speeds, estimate) for shape in sorted(chosen, reverse=True)]


Speeds = Mapping[Shape, Mapping[int, float]]


def _mean(speeds: Speeds, chosen: Sequence[Shape], buckets: Sequence[int]) -> float:
    """The speed of the best of these shapes over that of the best of all, the mean over buckets."""
    return sum(_best(speeds, chosen, bucket) / _best(speeds, speeds, bucket) for bucket in buckets) / len(buckets)


def _best(speeds: Speeds, shapes: Iterable[Shape], bucket: int) -> float:
    return max(speeds[shape][bucket] for shape in shapes)


def _shortfall(speeds: Speeds, chosen: Sequence[Shape]) -> float:
    """How much faster the best of all shapes is than the best of those chosen, relative, in the worst bucket."""
    buckets = speeds[chosen[0]]
    return max(_best(speeds, speeds, bucket) / _best(speeds, chosen, bucket) - 1 for bucket in buckets)


def _proposed(shape: Shape, chosen: Sequence[Shape], speeds: Speeds, estimate: Estimate) -> ProposedShape:
    """A shape with its buckets: those where it is the best of the chosen, and those where it is nearly that."""
    best = {bucket: _best(speeds, chosen, bucket) for bucket in speeds[shape]}
    wins = tuple(bucket for bucket, speed in speeds[shape].items() if speed == best[bucket])
    near = tuple(bucket for bucket, speed in speeds[shape].items() if speed >= (1 - OF_USE) * best[bucket])
    return ProposedShape(shape, near or tuple(best)[:1], wins, _why(shape, wins, chosen, speeds, estimate))


def _why(shape: Shape, wins: Sequence[int], chosen: Sequence[Shape], speeds: Speeds, estimate: Estimate) -> str:
    """Where a shape is the best, and by how much over the best of the others that are there."""
    if not wins:
        return f"{words_of(shape)}, the best that drafts, where that pays at all"
    others, at = [other for other in chosen if other != shape], wins[0]
    if others:
        at = max(wins, key=lambda bucket: speeds[shape][bucket] / _best(speeds, others, bucket))
    figures = f"{estimate.tokens(shape):.1f} tokens a request in {estimate.ms(shape, at):.1f} ms at {at}"
    if not others:
        near = _shortfall(speeds, chosen) <= GAIN
        where = f"best at every batch or within {GAIN:.0%} of it" if near else "the best single one for all batches"
        return f"{words_of(shape)}, {where}: {figures}"
    other = max(others, key=lambda shape: speeds[shape][at])
    times = speeds[shape][at] / speeds[other][at]
    where = ranged(wins, tuple(speeds[shape]))
    return f"{words_of(shape)}, best at {where}: {figures}, {times:.2f} times the tokens a ms of {other}"


def words_of(shape: Shape) -> str:
    """Return what is drafted, in words; also of a step without drafts."""
    if shape == Shape(1, 1, 2):
        return "a chain of one draft"
    return shape.words if shape.num_steps else "no drafts"


def ranged(some: Sequence[int], buckets: Sequence[int]) -> str:
    """Return some of the buckets in words, ascending."""
    begin = buckets.index(some[0])
    if len(some) == 1:
        return f"a batch of {some[0]}"
    if tuple(buckets[begin : begin + len(some)]) == tuple(some):
        return f"batches of {some[0]} to {some[-1]}"
    return f"batches of {', '.join(map(str, some[:-1]))} and {some[-1]}"
