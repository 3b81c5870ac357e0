"""infer-types: every value gets a type; what a consumer reads must be what its producer hands over."""

from __future__ import annotations

from dataclasses import dataclass

from specc.compiler.ir.checker import check_linear, check_types
from specc.compiler.ir.core import Module
from specc.compiler.ir.infer import assign_types, explain
from specc.compiler.ir.signature import TypeMismatch
from specc.compiler.pass_manager.pass_base import Context, Pass
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError


@dataclass(frozen=True)
class InferTypes(Pass):
    """Infer all types in execution order; report every mismatch with both origins."""

    name = "infer-types"
    requires = frozenset({"expanded"})
    establishes = frozenset({"typed"})

    @classmethod
    def violations(cls, module: Module) -> list[str]:
        """Values without a type."""
        return [f"%{value.name} has no type" for value in module.values() if value.type is None]

    def run(self, module: Module, ctx: Context) -> None:
        """Type every op in order, and report all that does not fit."""
        findings: list[Diagnostic] = []
        for op in module.ops():
            if any(operand.type is None for operand in op.operands):
                continue  # its producer is already reported
            try:
                assign_types(module, op)
            except TypeMismatch as mismatch:
                findings.append(explain(op, mismatch))
        findings = findings or check_types(module) + check_linear(module)
        if findings:
            raise DiagnosticError(findings)
