"""How long decode steps take on this machine, by shape and bucket: a policy of shapes weighs acceptance against it."""

from __future__ import annotations

from pathlib import Path

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.files.writing import unfinished
from specc.lab.engine.engine import Engine
from specc.lab.engine.serving.fitting import chooser
from specc.runtime import measure_step_times, write_step_times
from specc.runtime.capabilities.shape import StepTimes
from specc.runtime.capabilities.step_times import REPEATS
from specc.version import __version__


def step_times(engine: Engine, *, repeats: int = REPEATS) -> StepTimes:
    """Time steps on padding rows, see `measure_step_times`; the engine may have requests, and counts none of them."""
    return measure_step_times(engine.bound, lambda shape, bucket: engine.decode((), shape, bucket), repeats=repeats)


def choose_by_times(engine: Engine, times: StepTimes) -> None:
    """Choose shapes by acceptance, or what drafts promise, and by how long steps take from now on."""
    engine.shape = chooser(engine.program.buckets, times)


def keep_times(engine: Engine, times: StepTimes, place: Path) -> None:
    """Write times of an engine's steps whole, folders as needed. DiagnosticError ``emit/io`` where that fails."""
    try:
        with unfinished(place) as temporary:
            write_step_times(temporary, times, engine.program, engine=f"specc {__version__}")
    except OSError as error:
        raise DiagnosticError(Diagnostic("emit/io", f"cannot write '{place}': {error.strerror}")) from error
