"""Step times in a file, which `specc tune --shapes` writes, as commands read them."""

from __future__ import annotations

from pathlib import Path

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.runtime import StepTimesError, read_step_times
from specc.runtime.capabilities.shape import ShapeBuckets, StepTimes, by_bucket


def times_in(path: Path, buckets: ShapeBuckets) -> StepTimes:
    """The times in a file, which a policy can choose shapes with these buckets by.

    DiagnosticError ``run/step-times`` where it has none of such a program, or none of a bucket.
    """
    try:
        times = read_step_times(path, buckets)
        by_bucket(buckets, times)
    except (StepTimesError, ValueError) as error:
        hint = "`specc tune --shapes CONFIG` measures them"
        raise DiagnosticError(Diagnostic("run/step-times", f"no step times in '{path}': {error}", hint=hint)) from error
    return times
