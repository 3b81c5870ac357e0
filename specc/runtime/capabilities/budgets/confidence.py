"""Which shape to draft next, of a program with budgets of rows: by what the drafts themselves promise.

Drafts are verified at every shape and every budget: see `ShapePolicy`. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...plan.shape import Shape, shapes_expected
from ..shape import ShapeBuckets, StepTimes, by_bucket, modelled_time

UNSEEN = 256
"""Steps of a bucket after which what a longer chain promised is forgotten, so that it is run for one step."""


class ConfidenceShape:
    """The shape whose drafts promise most tokens per time: for programs with `expected_tokens`.

    A step says how many tokens are expected of it at each shape of as many drafts or fewer, by how sure its drafts are
    and what requests have accepted lately (docs/budgets.md). The mean over its requests counts until the next step of
    the bucket says otherwise. It takes as long as `times` say of the bucket, or else 1 + step_cost * S + node_cost *
    requests * (rows - 1) times as long as a step without drafts. Every bucket has a shape of its own, one of those that
    were compiled for it and, where there are times, have one there. Another one is taken when it has been the best of
    all, and better by more than `gain`, in `patience` steps running. A bucket begins with the deepest. A chain that is
    longer than all that ran in the last `UNSEEN` steps of the bucket is run for one step, since nothing else tells what
    it promises. What is chosen depends on earlier steps alone.

    Args:
        buckets: those of every shape of the program, which are chains, or one tree at several budgets.
        step_cost: time of one draft step, in times of a step without drafts, where there are no `times`.
        node_cost: time of one more row that the target reads, likewise.
        gain: by how much, relative, another shape must be better.
        patience: in how many steps running.
        times: how long steps take, in every bucket of one shape or more.

    Attributes:
        expected: tokens that all requests of the last choice are expected to commit in a unit of `times`; None before
            the first choice, without times, and where no step has said what to expect of the shape.

    Raises ValueError without shapes, on numbers that make no sense, and for a bucket without a time.

    """

    def __init__(
        self,
        buckets: ShapeBuckets,
        *,
        step_cost: float = 0.1,
        node_cost: float = 0.002,
        gain: float = 0.03,
        patience: int = 8,
        times: StepTimes | None = None,
    ) -> None:
        """Begin with the deepest of every bucket."""
        if not buckets or min(step_cost, node_cost, gain) < 0 or patience < 1:
            raise ValueError("there is a shape, no cost and no gain is below 0, and patience is above")
        self._all = sorted(buckets)
        self._step_cost, self._node_cost = step_cost, node_cost
        self._gain, self._patience, self._times = gain, patience, times
        self._buckets = {size: _Bucket(shapes) for size, shapes in by_bucket(buckets, times).items()}
        self._last = max(self._buckets)
        self.expected: float | None = None

    def choose(self, requests: int) -> Shape:
        """The current shape of the bucket that holds so many requests, a better one, or one to look at."""
        self._last = next((size for size in self._buckets if size >= requests), max(self._buckets))
        bucket = self._buckets[self._last]
        speeds = {shape: tokens / self._time(shape, requests) for shape, tokens in bucket.tokens.items()}
        shape = bucket.unseen() or bucket.preferred(speeds, self._gain, self._patience)
        known = self._times is not None and shape in speeds
        self.expected = requests * speeds[shape] if known else None
        return shape

    def observe(self, shape: Shape, accept_lens: Sequence[int]) -> None:
        """Nothing to learn: what was accepted is in what the next step expects."""

    def expect(self, shape: Shape, expected_tokens: Sequence[Sequence[float]]) -> None:
        """Take note of what a step of a shape expects: the output `expected_tokens` of its requests, f32[b, n]."""
        if not expected_tokens:
            return
        columns = zip(*expected_tokens, strict=True)
        means = [sum(column) / len(expected_tokens) for column in columns]
        self._buckets[self._last].learn(dict(zip(shapes_expected(self._all, shape), means, strict=True)))

    def _time(self, shape: Shape, requests: int) -> float:
        if self._times is not None:
            return self._times[shape][self._last]
        return modelled_time(shape, requests, self._step_cost, self._node_cost)


class _Bucket:
    """What is known in one bucket: its shapes, which of them runs, and what each promises a request."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.shapes, self.current = shapes, max(shapes)
        self.tokens: dict[Shape, float] = {}
        self._age = dict.fromkeys(shapes, UNSEEN)
        self._rival, self._running = self.current, 0

    def unseen(self) -> Shape | None:
        """The longest chain, if one of which nothing was said for long is among them; it counts as said from now on."""
        for shape in self.shapes:
            self._age[shape] += 1
        if all(age <= UNSEEN for age in self._age.values()):
            return None
        self._age = dict.fromkeys(self.shapes, 0)
        return max(self.shapes)

    def learn(self, tokens: dict[Shape, float]) -> None:
        """Take note of what shapes promise, as far as they are the bucket's."""
        known = {shape: number for shape, number in tokens.items() if shape in self._age}
        self.tokens |= known
        self._age |= dict.fromkeys(known, 0)

    def preferred(self, speeds: dict[Shape, float], gain: float, patience: int) -> Shape:
        """The current shape, or the fastest once it has been that by enough in so many steps running."""
        best = max(speeds, key=speeds.__getitem__, default=self.current)
        better = best != self.current and speeds[best] > (1.0 + gain) * speeds.get(self.current, 0.0)
        self._running = (self._running + 1 if best == self._rival else 1) if better else 0
        self._rival = best
        if self._running >= patience:
            self.current, self._running = best, 0
        return self.current
