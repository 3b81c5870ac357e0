"""prune-dead-dataflow: liveness over the loop, to a fixpoint.

What no output depends on disappears: ops, optional results of forwards, carried values with their pool rows, stores and
loads. What a forward has to capture follows from what is left of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from specc.ir.core import Module, Op
from specc.ir.declarations import KvPool
from specc.ir.liveness import brief, hidden_result, sweep
from specc.ir.nodes import is_external
from specc.ir.types import StateType
from specc.pass_manager.pass_base import Context, Pass


@dataclass(frozen=True)
class PruneDeadDataflow(Pass):
    """Remove dead ops, results and carried values; set the capture mode of every forward."""

    name = "prune-dead-dataflow"
    requires = frozenset({"typed"})
    establishes = frozenset({"live"})

    def run(self, module: Module, ctx: Context) -> None:
        """Sweep what no output depends on, and set what every forward captures."""
        for removed in sweep(module):
            self.remark(ctx, f"nothing reads {removed.what}: {removed.verdict}", removed.location)
        self._drop_pools(module, ctx)
        for op in module.ops():
            if is_external(op):
                self._capture(module, op, ctx)

    def _drop_pools(self, module: Module, ctx: Context) -> None:
        """A model whose keys and values nothing reads or writes has no pool."""
        owners = {value.type.owner for value in module.inputs.values() if isinstance(value.type, StateType)}
        for pool in [pool for pool in module.decls_of(KvPool) if pool.name not in owners]:
            module.decls.remove(pool)
            self.remark(ctx, f"no forward writes keys and values of the {pool.name}: it has no KV pool", None)

    def _capture(self, module: Module, op: Op, ctx: Context) -> None:
        hidden = hidden_result(op)
        step = f" (step {op.attrs['step']})" if "step" in op.attrs else ""
        what = f"{op.opcode} in {op.phase}{step} captures"
        if hidden is None:
            if "width" not in op.attrs:
                return  # a forward that hands over nothing but logits
            self.remark(ctx, f"{what} nothing: nothing reads its hidden states", op.location)
            return
        readers = [brief(user) for user in module.users(hidden)]
        readers += [f"output {name}" for name, value in module.outputs.items() if value is hidden]
        message = f"{what} {op.attrs['capture']}: %{hidden.name} is read by {', '.join(readers)}"
        self.remark(ctx, message, op.location)
