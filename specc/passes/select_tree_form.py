"""select-tree-form: one branch is a chain, and a chain's tree is a constant.

With one branch nothing is ranked, so scores, links, depths and the mask fold away: the next token is an argmax,
columns are filled as tokens are drafted, positions depend on lengths alone. Every node list is a path, so the node
axis *is* the path axis, and from here on types say so.
"""

from __future__ import annotations

from dataclasses import dataclass

from specc.ir.core import Module, Op, Value
from specc.ir.infer import assign_types
from specc.ir.liveness import sweep
from specc.ir.types import TensorType
from specc.passes.base import Context, Pass


@dataclass(frozen=True)
class SelectTreeForm(Pass):
    """Fold the ``tree`` dialect away when there is one branch."""

    name = "select-tree-form"
    requires = frozenset({"typed", "live"})
    establishes = frozenset({"tree-form"})

    def run(self, module: Module, ctx: Context) -> None:
        """See the class."""
        if module.dims["K"].size != 1:
            k, n = module.size("K"), module.size("N")
            links = "selected and linked every step" if module.find("tree.select") else "with constant links"
            message = f"topk = {k}: a tree of {n} nodes, {links}; its node axis is no path"
            self.remark(ctx, message, ctx.at("topk"))
            return
        for grow in module.find("tree.grow"):
            _fold_grow(module, grow)
        for select in module.find("tree.select"):
            _fold_select(module, select)
        for comb in module.find("tree.comb"):
            _drop_links(module, *comb.results)
        for removed in sweep(module):
            self.remark(ctx, f"a chain does not need {removed.what}: {removed.verdict}", removed.location)
        for topk in module.find("vocab.topk"):
            if not module.users(topk.results[0]):
                _topk_to_argmax(module, topk, keep="K")
        _rename_axis(module, "N", "A")
        self.remark(
            ctx,
            "topk = 1: a chain; links and mask are constants, the node axis is the path axis (N = A = "
            f"{module.dims['A'].size}), tokens are argmaxes and carry no scores",
            ctx.at("topk"),
        )


def _fold_grow(module: Module, grow: Op) -> None:
    """Of one candidate the best one is it: its token is the argmax, its parent the only row."""
    tokens, _, kept, _ = grow.results
    topk = grow.operands[1].source
    assert topk is not None
    argmax = _insert(module, topk, "vocab.argmax", topk.operands, ("draft_token", "draft_bad"), dtype="i64", keep="")
    module.replace_uses(tokens, argmax.results[0])
    module.replace_uses(topk.results[2], argmax.results[1])
    for user in module.users(kept):
        if user.opcode == "tree.gather":
            module.replace_uses(user.result, user.operands[0])


def _fold_select(module: Module, select: Op) -> None:
    """Column i + 1 of a chain is the token of draft step i."""
    steps = int(select.attrs["steps"])
    bonus, first = select.operands[1], select.operands[2 + steps]
    assert first.source is not None
    start = _insert(module, first.source, "chain.start", (bonus, first), ("tokens",))
    tokens = start.result
    drafted = [op.results[0] for op in module.phases["draft"] if op.opcode == "vocab.argmax"]
    for column, token in enumerate(drafted, start=2):
        assert token.source is not None
        append = _insert(module, token.source, "chain.append", (tokens, token), ("tokens",), column=column)
        tokens = append.result
    old_tokens, parent, depth, orphan = select.results
    module.replace_uses(old_tokens, tokens)
    for user in module.users(orphan):
        module.replace_uses(user.result, user.operands[0])
    _drop_links(module, parent, depth)


def _drop_links(module: Module, parent: Value, depth: Value) -> None:
    """Without links the nodes are a chain: nobody reads parents or a mask, and positions follow each other."""
    masks = [user.result for user in module.users(parent) if user.opcode == "tree.mask"]
    for dropped in (parent, *masks):
        for user in module.users(dropped):
            if user.opcode != "tree.mask":
                module.set_operands(user, [value for value in user.operands if value is not dropped])
    for user in module.users(depth):
        positions = _insert(
            module, user, "kv.positions", user.operands[:1], ("verify_positions",), axis="A", offset=0, stride=1
        )
        module.replace_uses(user.result, positions.result)


def _topk_to_argmax(module: Module, topk: Op, keep: str) -> None:
    _, index, bad = topk.results
    argmax = _insert(module, topk, "vocab.argmax", topk.operands, ("next_token", "next_bad"), dtype="i64", keep=keep)
    module.replace_uses(index, argmax.results[0])
    module.replace_uses(bad, argmax.results[1])
    module.erase(topk)


def _insert(
    module: Module, after: Op, opcode: str, operands: tuple[Value, ...], names: tuple[str, ...], **attrs: str | int
) -> Op:
    """A typed op right after another one."""
    index = module.phases[after.phase].index(after) + 1
    op = module.add_op(after.phase, opcode, operands, [(name, None) for name in names], attrs, after.location, index)
    assign_types(module, op)
    return op


def _rename_axis(module: Module, old: str, new: str) -> None:
    for value in module.values():
        if isinstance(value.type, TensorType):
            value.type = value.type.renamed(old, new)
    for op in module.ops():
        op.attrs = {key: new if value == old else value for key, value in op.attrs.items()}
    module.dims.pop(old, None)
