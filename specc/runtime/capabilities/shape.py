"""Which shape to draft next, of a program that was compiled for several.

Drafts are verified at every shape, so what is chosen changes no text, or no distribution of texts: see `ShapePolicy`.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Protocol, TypeAlias

from ..plan.shape import Shape

ShapeBuckets: TypeAlias = Mapping[Shape, Sequence[int]]
"""By shape of a program the batch sizes that it was compiled for, ascending: `Program.buckets`."""
StepTimes: TypeAlias = Mapping[Shape, Mapping[int, float]]
"""By shape and bucket how long a step takes, in any unit."""

Kind: TypeAlias = tuple[int, int]
"""Topk and nodes of trees whose rates are the same, by position; 1 and 0 of all chains."""

UNTRIED = 8.0
"""How much longer an observation counts where there are no new ones."""
MORE_BRANCHES, MORE_NODES = 2.0, 1.5
"""To which power the expected chance of a miss is raised in a tree of more branches, or of as many and more nodes."""


class ShapePolicy(Protocol):
    """Chooses the shape of the next step from the results of earlier ones.

    With overlap a step is chosen before the last one's results are known.

    What is chosen changes no text where the target's token comes first (verify: greedy, target_only), unless the
    penalties are those of a step (penalties: committed). Where drafts are drawn (rejection, block) it changes the text
    of a seed, and not its distribution, if the policy knows nothing of drafts that are drawn already. It may know all
    that was emitted and accepted. One that chooses by the draft that the next step verifies gives some drafts up for
    what they are, and texts are not distributed as the target's any more (docs/semantics.md).
    """

    def choose(self, requests: int) -> Shape:
        """The shape of the next decode step, of so many requests: one that the program was compiled for."""
        ...

    def observe(self, shape: Shape, accept_lens: Sequence[int]) -> None:
        """Take note of a step of a shape: tokens committed per request, bonus included, behind a text's end as well."""
        ...


class FixedShape:
    """Always the same shape; for a batch that its buckets do not hold, the deepest whose buckets do.

    Args:
        shape: what to draft in every step.
        buckets: those of every shape of the program; none where the shape holds every batch.

    """

    def __init__(self, shape: Shape, buckets: ShapeBuckets | None = None) -> None:
        """Choose it from now on."""
        self._shape, self._buckets = shape, {} if buckets is None else buckets

    def choose(self, requests: int) -> Shape:
        """See `ShapePolicy`."""
        if self._shape not in self._buckets or self._buckets[self._shape][-1] >= requests:
            return self._shape
        holding = [shape for shape, buckets in self._buckets.items() if buckets[-1] >= requests]
        return max(holding, default=self._shape)

    def observe(self, shape: Shape, accept_lens: Sequence[int]) -> None:
        """Nothing to learn."""


class AcceptanceShape:
    """The shape that commits most tokens per time, by an estimate of how often the draft at each position is accepted.

    Rates belong to positions of shapes of one kind: chains, or trees of one topk and as many nodes. A position's rate
    is a mean over what was seen there lately, drawn towards what is expected. Chains, or else the smallest trees, are
    expected to have the rate of the position before, the first one's 1, so that drafts count as no worse than those
    before them where nothing was drafted for long. Other trees are expected to miss less than the next smaller kind:
    1 - (1 - r)^2 with more branches, as if there were two drafts, 1 - (1 - r)^1.5 with more nodes. A step of S draft
    steps commits 1 + r1 + r1 r2 + ... + r1 ... rS tokens. It takes as long as `times` say of the bucket that its
    requests run in, or else 1 + step_cost * S + node_cost * requests * (N - 1) times as long as one without drafts.
    Every bucket has a shape of its own, one of those that were compiled for it and, where there are times, have one
    there. To change it must promise more than `gain`, and so much that noise does not make it swing. What nobody drafts
    is forgotten, too, but so slowly that it is tried for few of all steps.

    Args:
        buckets: those of every shape of the program.
        step_cost: time of one draft step, in times of a step without drafts, where there are no `times`.
        node_cost: time of one more token that the target verifies, likewise.
        window: steps after which an observation counts for 1 / e of a new one, where there are new ones.
        pull: observations that the expected rate counts for.
        gain: by how much, relative, another shape must be better.
        patience: steps to stay at a shape at least.
        times: how long steps take, in every bucket of one shape or more.

    Attributes:
        expected: tokens that all requests of the last choice are expected to commit in a unit of `times`; None before
            the first choice, and without times.

    Raises ValueError without shapes, on numbers that make no sense, for a bucket without a time, and for shapes that
    differ in their rows alone: what is accepted says nothing of drafts without a row, and `ConfidenceShape` chooses.

    """

    def __init__(
        self,
        buckets: ShapeBuckets,
        *,
        step_cost: float = 0.1,
        node_cost: float = 0.002,
        window: float = 32.0,
        pull: float = 2.0,
        gain: float = 0.05,
        patience: int = 8,
        times: StepTimes | None = None,
    ) -> None:
        """Begin with the deepest of every bucket."""
        steps = [shape.num_steps for shape in buckets]
        if not steps or min(steps) < 0 or max(steps) < 1 or min(step_cost, node_cost) < 0 or window <= 0 or pull <= 0:
            raise ValueError("a shape drafts, no cost is below 0, window and pull are above")
        if gain < 0 or patience < 0:
            raise ValueError("gain and patience are not below 0")
        if len({shape[:3] for shape in buckets}) < len(buckets):
            raise ValueError("shapes differ in their rows alone, and what is accepted does not tell them apart")
        self._step_cost, self._node_cost, self._pull = step_cost, node_cost, pull
        self._gain, self._patience = gain, patience
        self._times, self._shapes = times, by_bucket(buckets, times)
        self._keep, self._keep_untried = (1.0 - min(1.0, 1.0 / steps) for steps in (window, UNTRIED * window))
        kinds = sorted({_kind(shape) for shape in buckets if shape.num_steps})
        self._tried = {kind: [0.0] * max(steps) for kind in kinds}
        self._accepted = {kind: [0.0] * max(steps) for kind in kinds}
        self._bucket = max(self._shapes)
        self._current = {bucket: max(shapes) for bucket, shapes in self._shapes.items()}
        self._stayed = dict.fromkeys(self._shapes, 0)
        self.expected: float | None = None

    def choose(self, requests: int) -> Shape:
        """The current shape of the bucket that holds so many requests, or a better one if it promises enough."""
        bucket = next((bucket for bucket in self._shapes if bucket >= requests), max(self._shapes))
        rates, current = self.rates(), self._current[bucket]
        speeds = {shape: self._speed(shape, rates, bucket, requests) for shape in self._shapes[bucket]}
        best = max(speeds, key=speeds.__getitem__)
        enough = speeds[best] > (1.0 + self._gain) * speeds[current]
        if enough and self._stayed[bucket] >= self._patience:
            self._current[bucket], self._stayed[bucket] = best, 0
        self._bucket = bucket
        if self._times is not None:
            self.expected = requests * speeds[self._current[bucket]]
        return self._current[bucket]

    def observe(self, shape: Shape, accept_lens: Sequence[int]) -> None:
        """Count what was tried and accepted at every position; a request that commits n tokens accepts n - 1."""
        if not accept_lens:
            return
        self._stayed[self._bucket] += 1
        for kind, tried in self._tried.items():
            accepted = self._accepted[kind]
            for position in range(len(tried)):
                drafted = kind == _kind(shape) and position < shape.num_steps
                keep = self._keep if drafted else self._keep_untried
                tried[position] *= keep
                accepted[position] *= keep
                if drafted:
                    tried[position] += sum(length > position for length in accept_lens)
                    accepted[position] += sum(length > position + 1 for length in accept_lens)

    def rates(self) -> dict[Kind, list[float]]:
        """How often a draft at each position is accepted, of those whose predecessors were.

        By topk and nodes of trees, and of chains by 1 and 0.
        """
        by_kind: dict[Kind, list[float]] = {}
        smaller: Kind | None = None
        for kind, tried in self._tried.items():
            rates: list[float] = []
            for position, (count, accepted) in enumerate(zip(tried, self._accepted[kind], strict=True)):
                expected = rates[-1] if rates else 1.0
                if smaller is not None:
                    misses = 1.0 - by_kind[smaller][position]
                    expected = 1.0 - misses ** (MORE_NODES if kind[0] == smaller[0] else MORE_BRANCHES)
                rates.append((accepted + self._pull * expected) / (count + self._pull))
            by_kind[kind], smaller = rates, kind
        return by_kind

    def _speed(self, shape: Shape, rates: Mapping[Kind, Sequence[float]], bucket: int, requests: int) -> float:
        """Tokens per time of a step of a shape in a bucket that holds the requests."""
        committed = reached = 1.0
        for rate in rates[_kind(shape)][: shape.num_steps] if shape.num_steps else ():
            reached *= rate
            committed += reached
        if self._times is not None:
            return committed / self._times[shape][bucket]
        return committed / modelled_time(shape, requests, self._step_cost, self._node_cost)


def _kind(shape: Shape) -> Kind:
    return (shape.topk, shape.num_nodes) if shape.is_tree else (1, 0)


def modelled_time(shape: Shape, requests: int, step_cost: float, node_cost: float) -> float:
    """How long a step takes, in times of one without drafts, where each draft step and each further row costs as much.

    Rows are those that the target reads of all requests.
    """
    return 1.0 + step_cost * shape.num_steps + node_cost * max(1, requests) * (shape.rows - 1)


def by_bucket(buckets: ShapeBuckets, times: StepTimes | None) -> dict[int, list[Shape]]:
    """By bucket, ascending, the shapes to choose from, ascending. ValueError for times that are none, or lack."""
    shapes: dict[int, list[Shape]] = {size: [] for size in sorted(set[int]().union(*buckets.values()))}
    for shape in sorted(buckets):
        known = buckets[shape] if times is None else times.get(shape, ())
        for bucket in {*buckets[shape]} & {*known}:
            shapes[bucket].append(shape)
    if untimed := [bucket for bucket, candidates in shapes.items() if not candidates]:
        raise ValueError(f"times are of every bucket, and there is none of {untimed[0]}")
    if any(not isfinite(time) or time <= 0 for by_bucket in (times or {}).values() for time in by_bucket.values()):
        raise ValueError("times are above 0 and finite")
    return shapes
