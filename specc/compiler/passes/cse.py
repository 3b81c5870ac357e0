"""cse: two pure ops that compute the same value from the same operands become one."""

from __future__ import annotations

from dataclasses import dataclass

from specc.compiler.ir.core import Module, Op, entry_of
from specc.compiler.ir.ops import OPS
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected


@dataclass(frozen=True)
class Cse(Pass):
    """Merge equal pure ops of one entry; a value that is overwritten in place stays its own."""

    name = "cse"
    requires = frozenset({"typed"})

    def run(self, module: Module, ctx: Context) -> None:
        """Merge equal ops until none are left."""
        changed = True
        while changed:
            changed = self._round(module, ctx)

    def _round(self, module: Module, ctx: Context) -> bool:
        seen: dict[tuple[object, ...], Op] = {}
        for op in list(module.ops()):
            if not _mergeable(module, op):
                continue
            key = (entry_of(op.phase), op.opcode, op.operands, tuple(sorted(op.attrs.items())))
            first = seen.setdefault(key, op)
            if first is not op:
                same = list(zip(op.results, first.results, strict=True))
                what = ", ".join(f"%{old.name} is %{new.name}" for old, new in same)
                why = f"{op.opcode} of the same operands"
                choice = Choice(what, "computed once", why, (Rejected("compute it again", "the values are equal"),))
                self.remark(ctx, f"{choice.of}: {choice.chosen}, {choice.reason}", op.location, choice)
                for old, new in same:
                    module.replace_uses(old, new)
                module.erase(op)
                return True
        return False


def _mergeable(module: Module, op: Op) -> bool:
    definition = OPS[op.opcode]
    if definition.effect or definition.inplace:
        return False
    return not any(user.overwritten is value for value in op.results for user in module.users(value))
