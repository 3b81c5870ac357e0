"""select-compaction: every live value with the node axis is brought to its accepted path once, or not at all.

Which values those are is a question about types. In a chain none has the node axis, so a path is the value itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from specc.ir.core import Module, tensor_type
from specc.passes.base import Context, Pass
from specc.support.diagnostics import Diagnostic, DiagnosticError


@dataclass(frozen=True)
class SelectCompaction(Pass):
    """Drop ``commit.path`` where its operand already lies along the path."""

    name = "select-compaction"
    requires = frozenset({"typed", "tree-form", "verify-selected"})
    establishes = frozenset({"compacted"})

    def run(self, module: Module, ctx: Context) -> None:
        """See the class."""
        for op in module.find("commit.path"):
            value = op.operands[0]
            if tensor_type(value) != tensor_type(op.result):
                message = f"%{value.name} has the node axis: compaction of trees is not implemented yet"
                raise DiagnosticError(Diagnostic("config/not-yet", message, op.location))
            name = op.result.name
            module.replace_uses(op.result, value)
            module.erase(op)
            self.remark(ctx, f"%{name} already lies along the accepted path: compaction is the identity, no code")
