"""bind-kv-layout: KV slots as table look-ups, window and reserve sizes, and work hoisted to where lengths are known."""

from __future__ import annotations

from dataclasses import dataclass

from specc.ir.core import Module
from specc.ir.plan import KvLayout, Options
from specc.passes.base import Context, Pass

_ABSTRACT = ("kv.draft_slots", "kv.verify_slots", "kv.extend_slots")


@dataclass(frozen=True)
class BindKvLayout(Pass):
    """Lower the abstract slot ops for a chain: the slot of a position is ``req_to_token[row, position]``."""

    name = "bind-kv-layout"
    requires = frozenset({"typed", "tree-form"})
    establishes = frozenset({"kv-bound"})

    def run(self, module: Module, ctx: Context) -> None:
        """See the class."""
        extra = max((int(op.attrs["offset"]) for op in module.find("kv.extend_slots")), default=0)
        for op in module.find(*_ABSTRACT):
            op.opcode = "kv.slots"  # same operands, attributes and type: only the choice has been made
        for op in module.find("kv.slots", "kv.positions"):
            if op.phase not in ("prefill", "prepare"):
                self.remark(ctx, f"%{op.result.name} depends on lengths alone: computed in prepare", op.location)
                module.move(op, "prepare")
        layout = _layout(module, extra)
        module.decls.append(layout)
        self.remark(
            ctx,
            f"a chain needs no branch pages: one slot window of {layout.window} tokens per request and step at "
            f"page_size {layout.page_size}, {layout.reserve} reserved; no tail is duplicated",
        )


def _layout(module: Module, extra: int) -> KvLayout:
    """One slot per node, one more when the draft sees true positions; twice that, for a step scheduled ahead."""
    options = module.decl(Options)
    nodes = module.size("A")
    window = nodes + extra
    return KvLayout("chain", options.page_size, extra, nodes, window, 2 * window)
