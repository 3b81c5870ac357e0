"""Runs a list of passes. All else (checking, printing, timing, reproducing) is an instrument that hangs on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specc.compiler.ir.core import Module
from specc.compiler.pass_manager.pass_base import Context, Pass
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError


class Instrument(Protocol):
    """Observes a pipeline. All methods may raise to stop it."""

    def before(self, module: Module, step: Pass) -> None:
        """Called before a pass runs."""

    def after(self, module: Module, step: Pass) -> None:
        """Called after a pass ran and its invariants were recorded."""

    def failed(self, module: Module, step: Pass, error: Exception) -> None:
        """Called when a pass, or an instrument after it, raised."""


class BaseInstrument:
    """An instrument that observes nothing."""

    def before(self, module: Module, step: Pass) -> None:
        """Observe nothing."""

    def after(self, module: Module, step: Pass) -> None:
        """Observe nothing."""

    def failed(self, module: Module, step: Pass, error: Exception) -> None:
        """Observe nothing."""


def run_passes(module: Module, passes: Sequence[Pass], ctx: Context, instruments: Sequence[Instrument] = ()) -> None:
    """Run ``passes`` over ``module`` in order.

    Raises:
        DiagnosticError: the program cannot be built, a pass needs what is not established, or it comes too late.

    """
    for step in passes:
        missing = step.requires - module.established
        if missing:
            message = f"{step.name} needs a module that is {', '.join(sorted(missing))}"
            raise DiagnosticError(Diagnostic("ir/invalid", message))
        if step.until in module.established:
            raise DiagnosticError(Diagnostic("ir/invalid", f"{step.name} comes before a module is {step.until}"))
        for instrument in instruments:
            instrument.before(module, step)
        try:
            step.run(module, ctx)
            module.established |= step.establishes
            for instrument in instruments:
                instrument.after(module, step)
        except Exception as error:
            for instrument in instruments:
                instrument.failed(module, step, error)
            raise
