"""Named invariants: what passes establish. check-each asks after each pass whether what a module claims holds."""

from __future__ import annotations

from dataclasses import dataclass

from specc.compiler.ir.checker import check_linear, check_module
from specc.compiler.ir.core import Module
from specc.compiler.pass_manager.manager import BaseInstrument
from specc.compiler.pass_manager.pass_base import Pass
from specc.compiler.passes.pipeline import PASSES
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

_OWNERS = {name: step for step in reversed(PASSES.values()) for name in step.establishes}
"""By invariant the pass that is asked what breaks it: the first that establishes it."""


def _needs() -> dict[str, frozenset[str]]:
    """By invariant, in the order of the passes: what every pass that establishes it starts from.

    ``expanded`` apart: what is written by hand has no place in a configuration.
    """
    needs: dict[str, frozenset[str]] = {}
    for step in PASSES.values():
        for name in step.establishes:
            needs[name] = needs.get(name, step.requires) & step.requires - {"expanded"}
    return needs


_NEEDS = _needs()


def check_invariants(module: Module) -> list[Diagnostic]:
    """Violations of every invariant the module claims; what rests on one that does not hold is not asked for."""
    findings: list[Diagnostic] = []
    held: set[str] = set()
    for name in (name for name in _NEEDS if name in module.established):
        missing = sorted(_NEEDS[name] - module.established)
        bad = [f"it is not {', '.join(missing)}"] * bool(missing)
        if not bad and _NEEDS[name] <= held:
            bad = _OWNERS[name].violations(module)
            if not bad:
                held.add(name)
        findings += [Diagnostic("ir/invalid", f"not {name}: {problem}") for problem in bad]
    return findings


def check_now(module: Module) -> None:
    """Run the checker, and the predicate of every invariant the module claims.

    Raises:
        DiagnosticError: ``ir/invalid`` or a mismatch of types.

    """
    findings = check_module(module)
    findings += check_linear(module) + check_invariants(module) if not findings else []
    if findings:
        raise DiagnosticError(findings)


class BrokenModuleError(Exception):
    """A pass left a module that breaks a rule of the IR: a bug in specc, never the user's doing."""


@dataclass
class CheckEach(BaseInstrument):
    """Run the checker, and the predicate of every established invariant, after each pass that changed something."""

    _held: tuple[object, ...] = ()

    def after(self, module: Module, step: Pass) -> None:
        """Check what the pass left.

        Raises:
            BrokenModuleError: naming the pass and everything that does not hold.

        """
        state = frozenset(module.established), module.state()
        if state == self._held:
            return
        try:
            check_now(module)
        except DiagnosticError as error:
            raise BrokenModuleError(f"{step.name} left a module that does not hold: {error}") from None
        self._held = state
