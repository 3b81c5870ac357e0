"""What an engine has to follow beyond sizes: the plan's `serving`, read off the forwards of a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from specc.compiler.ir.analysis.liveness import hidden_result
from specc.compiler.ir.core import Module, Op, is_state
from specc.compiler.ir.nodes import callback_of, is_external, is_rotated
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops.tree import mask_mode
from specc.runtime.plan.plan import Kv, Plan, Serving

RECURRENT = ("draft", "extend", "prefill_draft")
"""Forwards of drafts that read their own hidden states again."""
MODULE = "extend_module"
"""Forwards of drafts that may see at a position a token after it: the next one, or one as far on as their number."""


def serving(module: Module, kv: Kv, dims: Mapping[str, int]) -> Serving:
    """Return what an engine has to follow at one shape."""
    forwards = [op for op in module.ops() if is_external(op)]
    recurrent = [op for op in forwards if callback_of(op.opcode) in RECURRENT]
    modules = sum(callback_of(op.opcode) == MODULE for op in forwards)
    targets = [op for op in forwards if callback_of(op.opcode) == "target"]
    return Serving(
        reach=kv.window if is_rotated(module) else max(dims["N"], dims["A"] + kv.first_draft_position),
        lookahead=modules or int(kv.shifted and bool(recurrent)),
        settled=not modules,
        reads_hidden=any(op.get("hidden") is not None for op in recurrent),
        mask_mode=next((mask_mode(op.opcode, op.attrs) for op in module.ops() if op.has(Trait.MASKS)), None),
        extras=tuple(sorted({name for op in targets for name in _extras(op)})),
    )


def _extras(op: Op) -> list[str]:
    """What a forward of the target hands over besides logits and hidden states, which any does."""
    usual = (op.out("logits"), hidden_result(op))
    return [name for name, value in op.named_results.items() if not is_state(value) and value not in usual]


def followed_together(plans: Sequence[Plan]) -> list[Plan]:
    """The plans of all shapes of a program, each with what an engine has to follow whatever the next shape is."""
    serving = [plan.serving for plan in plans]
    together = Serving(
        reach=max(needs.reach for needs in serving),
        lookahead=max(needs.lookahead for needs in serving),
        settled=all(needs.settled for needs in serving),
        reads_hidden=any(needs.reads_hidden for needs in serving),
        mask_mode=next((needs.mask_mode for needs in serving if needs.mask_mode is not None), None),
        extras=tuple(sorted({name for needs in serving for name in needs.extras})),
    )
    room = {name: max(getattr(plan.kv, name) for plan in plans) for name in ("branch_room", "reserve")}
    return [replace(plan, serving=together, kv=replace(plan.kv, **room)) for plan in plans]
