"""Which shape the next step of a program has, in an engine: what the adapters of all engines share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ._plugin import ServerError

SHAPE, TIMES = "SPECC_SHAPE", "SPECC_STEP_TIMES"
"""Environment variables: the name of the shape to run, or `auto`; the file of times, which are measured by default."""
AUTO = "auto"
EXPECTED = "expected_tokens"
"""The output of a step with budgets: what it expects of each request at every shape of no more drafts, f32[b, n]."""
StepTimes: TypeAlias = Mapping[Any, Mapping[int, float]]
"""Milliseconds of a step, by shape and bucket."""
Share: TypeAlias = Callable[[StepTimes], StepTimes]


class Shapes:
    """Chooses among the shapes of a program: by a policy where there are several, or one by its name.

    An engine that changes shapes by itself is the policy.

    Attributes:
        name: that of the shape, or `auto`.
        times: milliseconds of a step by shape and bucket, as far as the policy needs them.

    """

    def __init__(
        self,
        package: Any,
        buckets: Mapping[Any, Sequence[int]],
        measure: Callable[[], StepTimes],
        share: Share,
        follow: Callable[[int], str] | None = None,
    ) -> None:
        """Read or measure how long steps take, if a policy needs it.

        Args:
            package: the program's.
            buckets: those of every shape.
            measure: says how long steps take, where no file does; nothing where that is not known.
            share: gives all ranks what the first one has; they agree on the environment variables before.
            follow: names the shape of a step of so many requests in an engine that changes shapes by itself.

        Raises ServerError where an environment variable says what cannot be.

        """
        self._package, self._buckets, self._follow = package, buckets, follow
        self._known = {str(shape): shape for shape in buckets}
        self.times: StepTimes = {}
        wanted = os.environ.get(SHAPE, AUTO)
        if not self.knows(wanted):
            raise ServerError(f"{SHAPE} is {AUTO} or one of {', '.join(self._known)}, got {wanted!r}")
        if wanted == AUTO and len(self._known) > 1 and follow is None:
            self.times = share(written(package, buckets) or measure())
        self.take(wanted)

    @property
    def words(self) -> Sequence[str]:
        """What may be taken: `auto`, and the names of all shapes."""
        return (AUTO, *self._known)

    def knows(self, name: object) -> bool:
        """Whether it is the name of a shape, or `auto`; it may be anything."""
        return isinstance(name, str) and name in self.words

    def take(self, name: str) -> None:
        """Run the shape of a name that is known from now on, or those that a policy chooses."""
        self.name, self._policy = name, None
        if len(self._known) == 1:
            (self.name,) = self._known
        elif name == AUTO and self._follow is not None:
            self._policy = Followed(self._follow, {name: self._fixed(name) for name in self._known})
        elif name == AUTO:
            self._policy = policy_of(self._package, self._buckets, self.times or None)
        else:
            self._policy = self._fixed(name)

    def _fixed(self, name: str) -> Any:
        return self._package.FixedShape(self._known[name], self._buckets)

    def choose(self, requests: int) -> Any:
        """The shape of the next step, of so many requests."""
        return self._known[self.name] if self._policy is None else self._policy.choose(requests)

    @property
    def expected(self) -> float | None:
        """Tokens a second that all requests of the last choice are expected to have; None where no times are known."""
        expected: float | None = getattr(self._policy, "expected", None)
        return None if expected is None else 1e3 * expected

    def observe(self, shape: Any, accept_lens: Sequence[int]) -> None:
        """Take note of how many tokens a step has emitted of each request."""
        if self._policy is not None:
            self._policy.observe(shape, accept_lens)

    def expect(self, shape: Any, expected_tokens: Sequence[Sequence[float]]) -> None:
        """Take note of what a step of a shape expects of each request, its output `EXPECTED`, where that counts."""
        if (told := getattr(self._policy, "expect", None)) is not None:
            told(shape, expected_tokens)


class Followed:
    """The shapes that an engine takes by itself, which hears of every step what it has accepted.

    Args:
        follow: names that of a step of so many requests.
        fixed: by name what always has the shape, but for batches that its buckets do not hold.

    """

    def __init__(self, follow: Callable[[int], str], fixed: Mapping[str, Any]) -> None:
        """Choose nothing yet."""
        self._follow, self._fixed = follow, fixed

    def choose(self, requests: int) -> Any:
        """The shape of the next step, of so many requests."""
        return self._fixed[self._follow(requests)].choose(requests)

    def observe(self, shape: Any, accept_lens: Sequence[int]) -> None:
        """Nothing: the engine was told."""


def policy_of(package: Any, buckets: Mapping[Any, Sequence[int]], times: StepTimes | None) -> Any:
    """A policy of the package among its shapes: by what drafts promise where there are budgets, or by acceptance."""
    budgets = any(shape.budget is not None for shape in buckets)
    make = package.ConfidenceShape if budgets else package.AcceptanceShape
    return make(buckets, times=times)


def largest(plans: Mapping[Any, Any]) -> int:
    """How many requests a step may have at most, of plans by shape: the largest bucket of any."""
    return max(plan.buckets[-1] for plan in plans.values())


def written(package: Any, buckets: Mapping[Any, Sequence[int]]) -> StepTimes | None:
    """Milliseconds of a step by shape and bucket of the file that `SPECC_STEP_TIMES` names; None where it names none.

    ServerError where the file is none, of another program, or has no times of a bucket.
    """
    if not (path := os.environ.get(TIMES)):
        return None
    try:
        times: Mapping[Any, Mapping[int, float]] = package.read_step_times(Path(path), buckets)
        policy_of(package, buckets, times)
    except (package.SpeccError, ValueError) as error:
        raise ServerError(f"{TIMES}={path}: {error}") from error
    return times
