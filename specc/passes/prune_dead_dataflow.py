"""prune-dead-dataflow: liveness over the loop, to a fixpoint.

What no output depends on disappears: ops, optional results of forwards, carried values with their pool rows, stores and
loads. What a forward has to capture follows from what is left of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from specc.ir.core import Module
from specc.ir.liveness import hidden_result, sweep
from specc.ir.nodes import is_external
from specc.passes.base import Context, Pass


@dataclass(frozen=True)
class PruneDeadDataflow(Pass):
    """Remove dead ops, results and carried values; set the capture mode of every forward."""

    name = "prune-dead-dataflow"
    requires = frozenset({"typed"})
    establishes = frozenset({"live"})

    def run(self, module: Module, ctx: Context) -> None:
        """See the class."""
        for removed in sweep(module):
            self.remark(ctx, f"nothing reads {removed}: removed")
        for op in module.ops():
            if not is_external(op):
                continue
            if hidden_result(op) is None:
                op.attrs |= {"capture": "null", "width": 0}
                self.remark(ctx, f"{op.opcode} in {op.phase} captures nothing", op.location)
            else:
                self.remark(ctx, f"{op.opcode} in {op.phase} captures {op.attrs['capture']}", op.location)
