"""Which shape the next step of a program has, in an engine: what the adapters of all engines share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ._plugin import ServerError

SHAPE, TIMES = "SPECC_SHAPE", "SPECC_STEP_TIMES"
"""Environment variables: the name of the shape to run, or `auto`; the file of times, which are measured by default."""
AUTO = "auto"


class Shapes:
    """Chooses among the shapes of a bound program: by a policy where there are several, or one by its name.

    Attributes:
        name: that of the shape, or `auto`.
        times: milliseconds of a step by shape and bucket, as far as the policy needs them.

    """

    def __init__(self, package: Any, step: Any, run: Callable[[Any, int], object], share: Callable[[Any], Any]) -> None:
        """Read or measure how long steps take, if a policy needs it.

        Args:
            package: the program's.
            step: it, as it is bound and captured by then.
            run: queues a step of a shape in a bucket, all of whose rows are padding.
            share: gives all ranks what the first one has.

        Raises ServerError where an environment variable says what cannot be.

        """
        self.times: dict[Any, Mapping[int, float]] = {}
        self._policy: Any = None
        self._only = only(step.buckets)
        self.name = AUTO if self._only is None else str(self._only)
        if self._only is None:
            self.times = share(written(package, step.buckets) or package.measure_step_times(step, run))
            self._policy = package.AcceptanceShape(step.buckets, times=self.times)
        elif len(step.buckets) > 1:
            self._policy = package.FixedShape(self._only, step.buckets)

    def choose(self, requests: int) -> Any:
        """The shape of the next step, of so many requests."""
        return self._only if self._policy is None else self._policy.choose(requests)

    def observe(self, shape: Any, accept_lens: Sequence[int]) -> None:
        """Take note of how many tokens a step has emitted of each request."""
        if self._policy is not None:
            self._policy.observe(shape, accept_lens)


def only(shapes: Sequence[Any]) -> Any:
    """The one shape that a server is to run; None where a policy chooses. ServerError for one that is not there."""
    wanted = os.environ.get(SHAPE, AUTO)
    if wanted == AUTO:
        return next(iter(shapes)) if len(shapes) == 1 else None
    for shape in shapes:
        if str(shape) == wanted:
            return shape
    raise ServerError(f"{SHAPE} is {AUTO} or one of {', '.join(map(str, shapes))}, got {wanted!r}")


def written(package: Any, buckets: Mapping[Any, Sequence[int]]) -> Mapping[Any, Mapping[int, float]] | None:
    """Milliseconds of a step by shape and bucket of the file that `SPECC_STEP_TIMES` names; None where it names none.

    ServerError where the file is none, or of another program.
    """
    if not (path := os.environ.get(TIMES)):
        return None
    try:
        times: Mapping[Any, Mapping[int, float]] = package.read_step_times(Path(path), buckets)
    except package.SpeccError as error:
        raise ServerError(f"{TIMES}={path}: {error}") from error
    return times
