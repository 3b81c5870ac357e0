"""select-verify: the configured verification mode becomes one verify op and the passes over the logits it needs."""

from __future__ import annotations

from dataclasses import dataclass

from specc.ir.core import Module, Op
from specc.ir.infer import assign_types
from specc.ir.ops import OPS
from specc.pass_manager.pass_base import Context, Pass
from specc.support.diagnostics import Diagnostic, DiagnosticError

_REMARKS = {
    "greedy": "one argmax of every node's row, then a walk; no temperature, penalties or randomness",
    "target_only": "one draw of every node's token, then a walk; no softmax is written, and the drafts decide how"
    " many tokens a step gives, not which",
    "rejection": "drafts are drawn, each is accepted by its own probabilities, and what the first one that is not"
    " leaves is drawn from",
    "block": "drafts are drawn, as many are accepted as the probabilities of all of them allow, and what they leave is"
    " drawn from",
}


@dataclass(frozen=True)
class SelectVerify(Pass):
    """Lower ``verify.accept``: a walk along the target's own tokens, which are argmaxes. Drawn ones are there."""

    name = "select-verify"
    requires = frozenset({"typed", "tree-form"})
    establishes = frozenset({"verify-selected"})

    def run(self, module: Module, ctx: Context) -> None:
        """Lower the verification of the step to one verify op and its passes over the logits."""
        for accept in module.find("verify.accept"):
            mode = accept.attrs["mode"]
            if mode != "greedy":
                message = f"verify.accept is greedy, and not {mode}"
                raise DiagnosticError(Diagnostic("ir/invalid", message, accept.location))
            _lower_greedy(module, accept)
        for walk in module.find("verify.greedy"):
            mode = _mode(walk["argmax"].source)
            self.remark(ctx, f"{mode}: {_REMARKS[mode]}", walk.location)


def _mode(source: Op | None) -> str:
    """How the tokens were found that are walked along."""
    if source is not None and source.opcode == "sample.accept":
        weigh = source["weights"].source
        assert weigh is not None
        return str(weigh.attrs["mode"])
    return "target_only" if source is not None and source.opcode == "sample.draw" else "greedy"


def _lower_greedy(module: Module, accept: Op) -> None:
    phase = module.phases[accept.phase]
    at = phase.index(accept)
    argmax = module.add_op(
        accept.phase,
        "vocab.argmax",
        (accept["logits"], accept["rows"]),
        [("target_argmax", None), ("target_bad", None)],
        {"dtype": "i32", "keep": ""},
        accept.location,
        at,
    )
    greedy = module.add_op(
        accept.phase,
        "verify.greedy",
        [argmax.out("index") if name == "logits" else value for name, value in accept.named.items()],
        [(accept.out(slot.name).name, None) for slot in OPS["verify.greedy"].results],
        {},
        accept.location,
        at + 1,
    )
    assign_types(module, argmax)
    assign_types(module, greedy)
    verdicts = {"bad": argmax.out("bad"), **greedy.named_results}
    names = {name: old.name for name, old in accept.named_results.items()}
    for name, old in accept.named_results.items():
        module.replace_uses(old, verdicts[name])
    module.erase(accept)
    for name, value in greedy.named_results.items():
        module.rename(value, names[name])
