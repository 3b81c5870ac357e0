"""expand-algorithm: the algorithm writes its graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specc.compiler.algorithms import algorithm, plugin
from specc.compiler.algorithms.blocks.scope import Scope
from specc.compiler.algorithms.plugins.place import differences
from specc.compiler.ir.core import Module, states
from specc.compiler.ir.declarations import KvPool
from specc.compiler.pass_manager.pass_base import Context, Pass
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError


@dataclass(frozen=True)
class ExpandAlgorithm(Pass):
    """Replace ``spec.step`` by the phases of its algorithm."""

    name = "expand-algorithm"
    establishes = frozenset({"expanded"})
    repeats = False

    @classmethod
    def violations(cls, module: Module) -> list[str]:
        """What of ``spec`` is left, and ops that nobody wrote anywhere."""
        bad = [f"{op.opcode} is left" for op in module.ops() if op.opcode.startswith("spec.")]
        return bad + [f"{op.opcode} has no location" for op in module.ops() if op.location is None]

    def run(self, module: Module, ctx: Context) -> None:
        """Put the ops that the algorithm writes in the place of ``spec.step``."""
        for op in module.find("spec.step"):
            if ctx.loaded is None:
                raise DiagnosticError(
                    Diagnostic(
                        "ir/invalid", "expand-algorithm needs the configuration, not only its .specir", op.location
                    )
                )
            module.erase(op)
            name = str(op.attrs["algorithm"])
            chosen, source = algorithm(name), plugin(name)
            if source is None:
                chosen.build(Scope(module, ctx.loaded))
            else:
                source.build(chosen, Scope(module, ctx.loaded))
                if (place := chosen.needs.runs_as) is not None:
                    source.takes(place, differences(module, algorithm(place), ctx.loaded), op.location)
            kept = sorted(ctx.kept & module.carries.keys())
            module.carries |= {name: replace(module.carries[name], kept=True) for name in kept}
            owners = {owner for name, owner in states(module).items() if name in ctx.kept}
            for pool in [pool for pool in module.decls_of(KvPool) if pool.name in owners]:
                module.decls[module.decls.index(pool)] = replace(pool, kept=True)
            counts = [f"{len(ops)} in {phase}" for phase, ops in module.phases.items() if ops]
            self.remark(ctx, f"{chosen.name}: {chosen.summary}; ops: {', '.join(counts)}", op.location)
