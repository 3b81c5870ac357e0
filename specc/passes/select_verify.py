"""select-verify: the configured verification mode becomes one verify op and the passes over the logits it needs."""

from __future__ import annotations

from dataclasses import dataclass

from specc.ir.core import Module, Op
from specc.ir.infer import assign_types
from specc.passes.base import Context, Pass
from specc.support.diagnostics import Diagnostic, DiagnosticError


@dataclass(frozen=True)
class SelectVerify(Pass):
    """Lower ``verify.accept``; only greedy verification exists today."""

    name = "select-verify"
    requires = frozenset({"typed", "tree-form"})
    establishes = frozenset({"verify-selected"})

    def run(self, module: Module, ctx: Context) -> None:
        """Lower the verification of the step to one verify op and its passes over the logits."""
        for accept in module.find("verify.accept"):
            mode = accept.attrs["mode"]
            if mode != "greedy":
                message = f"verify: {mode} is not implemented yet"
                raise DiagnosticError(Diagnostic("config/not-yet", message, accept.location))
            _lower_greedy(module, accept)
            self.remark(
                ctx,
                "greedy: one argmax of every node's row, then a walk; no temperature, penalties or randomness",
                accept.location,
            )


def _lower_greedy(module: Module, accept: Op) -> None:
    tokens, logits, rows, *links = accept.operands
    phase = module.phases[accept.phase]
    at = phase.index(accept)
    argmax = module.add_op(
        accept.phase,
        "vocab.argmax",
        (logits, rows),
        [("target_argmax", None), ("target_bad", None)],
        {"dtype": "i32", "keep": ""},
        accept.location,
        at,
    )
    greedy = module.add_op(
        accept.phase,
        "verify.greedy",
        (tokens, argmax.results[0], rows, *links),
        [(value.name, None) for value in accept.results[:3]],
        {},
        accept.location,
        at + 1,
    )
    assign_types(module, argmax)
    assign_types(module, greedy)
    for old, new in zip(accept.results, (*greedy.results, argmax.results[1]), strict=True):
        module.replace_uses(old, new)
    names = [value.name for value in accept.results]
    module.erase(accept)
    for value, name in zip(greedy.results, names, strict=False):
        module.rename(value, name)
