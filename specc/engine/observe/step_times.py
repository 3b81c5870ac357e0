"""How long decode steps take on this machine, by shape and bucket: a policy of shapes weighs acceptance against it."""

from __future__ import annotations

from pathlib import Path

from specc.engine.engine import Engine
from specc.runtime import AcceptanceShape, StepTimesError, measure_step_times, read_step_times, write_step_times
from specc.runtime.capabilities.shape import ShapeBuckets, StepTimes
from specc.runtime.capabilities.step_times import REPEATS
from specc.support.diagnostics import Diagnostic, DiagnosticError
from specc.support.files.writing import unfinished
from specc.version import __version__


def step_times(engine: Engine, *, repeats: int = REPEATS) -> StepTimes:
    """Time steps on padding rows, see `measure_step_times`; the engine may have requests, and counts none of them."""
    return measure_step_times(engine.bound, lambda shape, bucket: engine.decode((), shape, bucket), repeats=repeats)


def choose_by_times(engine: Engine, times: StepTimes) -> None:
    """Choose shapes by acceptance and by how long steps take from now on."""
    engine.shape = AcceptanceShape(engine.program.buckets, times=times)


def choose_by_file(engine: Engine, path: Path) -> None:
    """As `choose_by_times`, of a file. DiagnosticError ``run/step-times`` where it has none of this program."""
    choose_by_times(engine, times_in(path, engine.program.buckets))


def times_in(path: Path, buckets: ShapeBuckets) -> StepTimes:
    """The times in a file, which a policy can choose shapes with these buckets by.

    DiagnosticError ``run/step-times`` where it has none of such a program, or none of a bucket.
    """
    try:
        times = read_step_times(path, buckets)
        AcceptanceShape(buckets, times=times)
    except (StepTimesError, ValueError) as error:
        hint = "`specc tune --shapes CONFIG` measures them"
        raise DiagnosticError(Diagnostic("run/step-times", f"no step times in '{path}': {error}", hint=hint)) from error
    return times


def keep_times(engine: Engine, times: StepTimes, place: Path) -> None:
    """Write times of an engine's steps whole, folders as needed. DiagnosticError ``emit/io`` where that fails."""
    try:
        with unfinished(place) as temporary:
            write_step_times(temporary, times, engine.program, engine=f"specc {__version__}")
    except OSError as error:
        raise DiagnosticError(Diagnostic("emit/io", f"cannot write '{place}': {error.strerror}")) from error
