"""Which shape the next step of a program has, in an engine: what the adapters of all engines share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ._plugin import ServerError

SHAPE, TIMES = "SPECC_SHAPE", "SPECC_STEP_TIMES"
"""Environment variables: the name of the one shape to run, or `auto`; the file of times, by default they are measured.
"""
AUTO = "auto"


class Shapes:
    """Chooses among the shapes of a bound program: by a policy where there are several, or always the same."""

    def __init__(self, package: Any, step: Any, plans: Mapping[Any, Any], share: Callable[[Any], Any]) -> None:
        """Read or measure how long steps take, if a policy needs it.

        `plans` are the program's by shape; `share` gives all ranks what the first one has. Steps are measured as they
        are bound by then, captured or not. ServerError where an environment variable says what cannot be.
        """
        self._policy: Any = None
        self._only: Any = only(plans)
        self.times: Mapping[Any, Mapping[int, float]] = {}
        if self._only is None:
            self.times = share(_times(package, step))
            self._policy = package.AcceptanceShape([*plans], times=self.times)

    def choose(self, requests: int) -> Any:
        """The shape of the next step, of so many requests."""
        return self._only if self._policy is None else self._policy.choose(requests)

    def observe(self, shape: Any, accept_lens: Sequence[int]) -> None:
        """Take note of how many tokens a step has emitted of each request."""
        if self._policy is not None:
            self._policy.observe(shape, accept_lens)

    @property
    def name(self) -> str:
        """The one shape that runs, or `auto`."""
        return AUTO if self._only is None else str(self._only)


def only(plans: Mapping[Any, Any]) -> Any:
    """The one shape that a server is to run; None where a policy chooses. ServerError for one that is not there."""
    wanted = os.environ.get(SHAPE, AUTO)
    if wanted == AUTO:
        return next(iter(plans)) if len(plans) == 1 else None
    for shape in plans:
        if str(shape) == wanted:
            return shape
    raise ServerError(f"{SHAPE} is {AUTO} or one of {', '.join(map(str, plans))}, got {wanted!r}")


def _times(package: Any, step: Any) -> Mapping[Any, Mapping[int, float]]:
    """Milliseconds of a step by shape and bucket, of the file that `SPECC_STEP_TIMES` names, or measured here."""
    if path := os.environ.get(TIMES):
        try:
            return package.read_step_times(Path(path))
        except (OSError, ValueError, package.SpeccError) as error:
            raise ServerError(f"{TIMES}={path}: {error}") from error
    return package.measure_step_times(step)
