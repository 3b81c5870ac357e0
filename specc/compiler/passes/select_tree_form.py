"""select-tree-form: one branch is a chain, and a chain's tree is a constant.

With one branch nothing is ranked, so scores, links, depths and the mask fold away: the next token is an argmax,
columns are filled as tokens are drafted, positions depend on lengths alone. Every node list is a path, so the node
axis *is* the path axis, and from here on types say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specc.compiler.ir.analysis.liveness import sweep
from specc.compiler.ir.core import Module, Op, Value
from specc.compiler.ir.infer import insert_behind
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import roots
from specc.compiler.ir.ops.tree import LINKS, SELECT
from specc.compiler.kernels.writing.vocabulary import ranked
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.compiler.passes.prune_dead_dataflow import removal
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

_FORM = "form of the draft"
_OF_CHAINS = frozenset(op.name for op in roots.OPS)
"""Ops of the ``tree`` dialect that a chain has too."""


@dataclass(frozen=True)
class SelectTreeForm(Pass):
    """Fold the ``tree`` dialect away when there is one branch."""

    name = "select-tree-form"
    requires = frozenset({"typed", "live"})
    establishes = frozenset({"tree-form"})

    @classmethod
    def violations(cls, module: Module) -> list[str]:
        """Ops of trees in a chain."""
        if module.dims.get("K") is not None and module.dims["K"].size != 1:
            return []
        return [f"{op.opcode} in a chain" for op in links_of(module)]

    def run(self, module: Module, ctx: Context) -> None:
        """Fold the tree of a single branch into a chain, and say what is drafted."""
        steps = module.dims.get("S")
        if steps is not None and steps.size == 0:
            reason = "num_steps is 0, and the target reads the root alone"
            self.remark(ctx, f"{reason}: nothing is linked", ctx.at("num_steps"), Choice(_FORM, "no drafts", reason))
        elif module.size("K") != 1:
            k, n = module.size("K"), module.size("N")
            linked = module.find(*LINKS)
            links = "selected and linked every step" if linked else "with constant links"
            message = f"topk = {k}: a tree of {n} nodes, {links}; its node axis is no path"
            other = Rejected("chain", f"it would draft one of {k} branches, {module.size('A')} of {n} nodes")
            choice = Choice(_FORM, f"tree of {n} nodes", f"topk is {k}; {links}", (other,))
            self.remark(ctx, message, ctx.at("topk"), choice)
        else:
            nodes = f"links and mask are constants, the node axis is the path axis (N = A = {module.size('A')})"
            tree = Rejected("tree", "scores, links and a mask, all of them constants where there is one branch")
            choice = Choice(_FORM, f"chain of {module.size('A')} nodes", "topk is 1: nothing is ranked", (tree,))
            message = f"topk = 1: a chain; {nodes}, tokens are argmaxes and carry no scores"
            self.remark(ctx, message, ctx.at("topk"), choice)
        if module.size("K") == 1:
            self._fold(module, ctx)

    def _fold(self, module: Module, ctx: Context) -> None:
        """Fold a chain's tree away."""
        drafted = dict(_fold_grow(module, grow) for grow in module.find("tree.grow"))
        for select in module.find(SELECT):
            _fold_select(module, select, drafted)
        for comb in module.find("tree.comb"):
            _drop_links(module, comb.out("parent"), comb.out("depth"))
        for removed in sweep(module):
            message = f"a chain does not need {removed.what}: {removed.verdict}"
            self.remark(ctx, message, removed.location, removal(module, removed))
        if links := links_of(module):
            raise DiagnosticError([_still_read(op) for op in links])
        handed_out = module.outputs.values()
        for topk in module.find("vocab.topk"):
            alone = ranked(module, topk) == 1 and not module.users(topk.out("p"))
            if alone and topk.out("p") not in handed_out:
                _topk_to_argmax(module, topk, keep="K")
        _rename_axis(module, "N", "A")


def links_of(module: Module) -> list[Op]:
    """The ops that no chain has."""
    return [op for op in module.ops() if op.opcode.startswith("tree.") and op.opcode not in _OF_CHAINS]


def _still_read(op: Op) -> Diagnostic:
    names = ", ".join(f"%{value.name}" for value in op.results)
    message = f"topk is 1: a chain has no {op.opcode}, and something reads or hands out what comes of {names}"
    return Diagnostic("ir/invalid", message, op.location)


def _fold_grow(module: Module, grow: Op) -> tuple[Value, Value]:
    """With one candidate there is nothing to rank: its token is the argmax, its parent the only row.

    Where something else reads how probable it is, a top-k of one stays.

    Returns the candidates' tokens [B, K, K] and what they are now, the token [B, K].
    """
    candidates, topk = grow["index"], grow["p"].source
    source = candidates.source
    translation = source if source is not None and source.opcode == "vocab.translate" else None
    index = candidates if translation is None else translation["index"]
    if topk is None or topk.opcode != "vocab.topk" or topk.out("index") is not index:
        message = f"a chain drafts the most probable token, and the candidates %{candidates.name} are no vocab.topk's"
        raise DiagnosticError(Diagnostic("ir/invalid", message, grow.location))
    for user in module.users(grow.out("kept")):
        if user.opcode == "tree.gather":
            module.replace_uses(user.result, user["x"])
    if any(user is not grow for user in module.users(grow["p"])):
        only = insert_behind(module, grow, "budget.only", (candidates,), ("draft_token",)).result
        module.replace_uses(grow.out("tokens"), only)
        return candidates, only
    names = "draft_token", "draft_bad"
    argmax = insert_behind(module, topk, "vocab.argmax", topk.operands, names, dtype="i64", keep="")
    token = argmax.out("index")
    if translation is not None:
        operands = token, translation["map"], translation["rows"]
        token = insert_behind(module, argmax, translation.opcode, operands, ("draft_token",)).result
    module.replace_uses(grow.out("tokens"), token)
    module.replace_uses(topk.out("bad"), argmax.out("bad"))
    return candidates, token


def _fold_select(module: Module, select: Op, drafted: Mapping[Value, Value]) -> None:
    """Column i of a chain is the token of draft step i, in the order of the operands.

    drafted: what the candidates of every step have become, see `_fold_grow`.
    """
    tokens = _append(module, select, (select["bonus"], select["tokens0"]), "chain.start")
    for step in range(1, int(select.attrs["steps"])):
        grown = select[f"tokens{step}"]
        if grown not in drafted:
            message = f"a chain is linked from what was grown, and %{grown.name} are no candidates of a tree.grow"
            raise DiagnosticError(Diagnostic("ir/invalid", message, select.location))
        tokens = _append(module, select, (tokens, drafted[grown]), "chain.append", column=step + 1)
    module.replace_uses(select.out("tokens"), tokens)
    for user in module.users(select.out("orphan")):
        if user.opcode == "health.raise":
            module.replace_uses(user.result, user["health"])
    _drop_links(module, select.out("parent"), select.out("depth"))


def _append(module: Module, select: Op, operands: tuple[Value, Value], opcode: str, **attrs: int) -> Value:
    """The tokens of a chain after one more, as soon as both operands are there."""
    sources = [value.source for value in operands if value.source is not None]
    if not sources:
        message = f"a chain begins in a step, and %{operands[1].name} is there before it"
        raise DiagnosticError(Diagnostic("ir/invalid", message, select.location))
    last = max(sources, key=module.order().__getitem__)
    return insert_behind(module, last, opcode, operands, ("tokens",), **attrs).result


def _drop_links(module: Module, parent: Value, depth: Value) -> None:
    """Without links the nodes are a chain: nobody reads parents or a mask, and positions follow each other."""
    masks = [mask for user in module.users(parent) if user.has(Trait.MASKS) for mask in user.results]
    for dropped in (parent, *masks):
        for user in module.users(dropped):
            if not user.has(Trait.MASKS):
                module.set_operands(user, [value for value in user.operands if value is not dropped])
    for user in module.users(depth):
        if user.opcode != "tree.positions":
            continue
        positions = insert_behind(
            module, user, "kv.positions", (user["seq_lens"],), ("verify_positions",), axis="A", offset=0, stride=1
        )
        module.replace_uses(user.result, positions.result)


def _topk_to_argmax(module: Module, topk: Op, keep: str) -> None:
    names = "next_token", "next_bad"
    argmax = insert_behind(module, topk, "vocab.argmax", topk.operands, names, dtype="i64", keep=keep)
    module.replace_uses(topk.out("index"), argmax.out("index"))
    module.replace_uses(topk.out("bad"), argmax.out("bad"))
    module.erase(topk)


def _rename_axis(module: Module, old: str, new: str) -> None:
    for value in module.values():
        if value.type is not None:
            value.type = value.type.renamed(old, new)
    for op in module.ops():
        op.attrs = {key: new if value == old else value for key, value in op.attrs.items()}
    module.dims.pop(old, None)
