"""prune-dead-dataflow: liveness over the loop, to a fixpoint.

What no output depends on disappears: ops, optional results of forwards, carried values with their pool rows, stores and
loads. What a forward has to capture follows from what is left of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from specc.compiler.ir.analysis.liveness import Removed, brief, hidden_result, liveness, sweep
from specc.compiler.ir.core import Module, Op, states
from specc.compiler.ir.declarations import KvPool
from specc.compiler.ir.nodes import is_external
from specc.compiler.kernels.writing.family import nbytes
from specc.compiler.pass_manager.pass_base import REMOVED, Choice, Context, Pass, Rejected


@dataclass(frozen=True)
class PruneDeadDataflow(Pass):
    """Remove dead ops, results and carried values; set the capture mode of every forward."""

    name = "prune-dead-dataflow"
    requires = frozenset({"typed"})
    establishes = frozenset({"live"})

    @classmethod
    def violations(cls, module: Module) -> list[str]:
        """What is dead, and forwards that capture what they do not hand over."""
        live = liveness(module)
        bad = [f"{op.opcode} in {op.phase} is dead" for op in module.ops() if op not in live.ops]
        bad += [f"carry @{name} is dead" for name in module.carries if name not in live.fields]
        for op in module.ops():
            if "capture" in op.attrs and (op.attrs["capture"] == "null") != (hidden_result(op) is None):
                bad.append(f"{op.opcode} captures {op.attrs['capture']}, which does not fit its results")
        return bad

    def run(self, module: Module, ctx: Context) -> None:
        """Sweep what no output depends on, and set what every forward captures."""
        for removed in sweep(module):
            message = f"nothing reads {removed.what}: {removed.verdict}"
            self.remark(ctx, message, removed.location, removal(module, removed))
        self._drop_pools(module, ctx)
        for op in module.ops():
            if is_external(op):
                self._capture(module, op, ctx)

    def _drop_pools(self, module: Module, ctx: Context) -> None:
        """A model whose keys and values nothing reads or writes has no pool."""
        owners = states(module).values()
        for pool in [pool for pool in module.decls_of(KvPool) if pool.name not in owners]:
            module.decls.remove(pool)
            message = f"no forward writes keys and values of the {pool.name}"
            choice = Choice(f"KV pool of the {pool.name}", REMOVED, message)
            self.remark(ctx, f"{message}: it has no KV pool", None, choice)

    def _capture(self, module: Module, op: Op, ctx: Context) -> None:
        hidden = hidden_result(op)
        step = f" (step {op.attrs['step']})" if "step" in op.attrs else ""
        where = f"{op.opcode} in {op.phase}{step}"
        what = f"{where} captures"
        if hidden is None:
            if "width" not in op.attrs:
                return  # a forward that hands over nothing but logits
            why = "nothing reads its hidden states"
            others = (Rejected("last", "a row of each request or branch"), Rejected("full", "every row"))
            self.remark(ctx, f"{what} nothing: {why}", op.location, Choice(where, "null", why, others))
            return
        readers = [brief(user) for user in module.users(hidden)]
        readers += [f"output {name}" for name, value in module.outputs.items() if value is hidden]
        mode, why = str(op.attrs["capture"]), f"%{hidden.name} is read by {', '.join(readers)}"
        other = "every row, and one is read" if mode == "last" else "one row, and all are read"
        others = (Rejected("null", why), Rejected("full" if mode == "last" else "last", other))
        self.remark(ctx, f"{what} {mode}: {why}", op.location, Choice(where, mode, why, others))


def removal(module: Module, removed: Removed) -> Choice:
    """What is gone, as a choice: keeping it would take its bytes at the largest bucket, if it would be in memory.

    None are counted where lengths decide how many.
    """
    why = removed.why or "nothing reads it"
    if removed.type is None:
        return Choice(removed.what, REMOVED, why)
    kept = Rejected("keep it", "it would be written and not read", nbytes(module, removed.type) or None)
    return Choice(removed.what, REMOVED, why, (kept,), 0, "bytes")
