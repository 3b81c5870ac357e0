"""select-verify: which rows of the target's logits the configured verification reads, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specc.compiler.ir.core import Attr, Module, Op, Value, tensor_type
from specc.compiler.ir.declarations import Options
from specc.compiler.ir.infer import assign_types
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

LAUNCH = 3.5
"""Microseconds from a launch to the next one that depends on it, in a captured graph: a figure of the model."""
DRAW = 1.6e-6
"""Microseconds that a large GPU takes to draw, for a logit of any dtype: a draw computes more than it reads. Fitted to
`bench/rows.py`, as are those below."""
TABLES = 2.4
"""How many times as long it takes where a number is read for every logit, as penalties do."""
CUT = 1.5e-5
"""Microseconds that a cut takes for a logit of a row."""

_ROWS = "rows that are drawn"

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
    """Choose which rows of the target a sampled verification draws: all at once, or those along the path."""

    name = "select-verify"
    requires = frozenset({"typed", "tree-form"})
    establishes = frozenset({"verify-selected"})

    @classmethod
    def violations(cls, module: Module) -> list[str]:
        """Where it is undecided which rows are drawn."""
        return [f"{op.opcode} is undecided" for op in module.find("walk.bad") if op.attrs["rows"] == "auto"]

    def run(self, module: Module, ctx: Context) -> None:
        """Say how drafts are verified, and write the walk out where rows are drawn along the path."""
        for walk in module.find("verify.greedy"):
            mode = _mode(walk["argmax"].source)
            choice = Choice("verification", mode, "the configuration says so" if ctx.at("verify") else "the default")
            self.remark(ctx, f"{choice.chosen}: {_REMARKS[mode]}", walk.location, choice)
        for bad in module.find("walk.bad"):
            self._choose(module, bad, ctx)

    def _choose(self, module: Module, bad: Op, ctx: Context) -> None:
        """Draw all rows at once, or those that are reached, as the configuration says or as takes less time."""
        drawn, form = _Drawn.of(module, bad), str(bad.attrs["rows"])
        if form not in ("auto", "eager", "lazy"):
            message = f"rows may be drawn auto, eager or lazy, and not {form}"
            raise DiagnosticError(Diagnostic("ir/invalid", message, bad.location))
        if drawn is None:
            why = "something else reads what is drawn of them"
            message = f"every row is drawn, because {why}"
            if form == "lazy":
                raise DiagnosticError(Diagnostic("legal/verify", message, bad.location, "leave verify_rows out"))
            lazily = Rejected("lazy", "it would not draw the others")
            choice = Choice(_ROWS, "eager", why, (lazily,))
            self.remark(ctx, f"{choice.chosen}: {message}", bad.location, choice)
            bad.attrs["rows"] = choice.chosen
            return
        eager, lazy = drawn.microseconds(module)
        why = "the configuration says so" if form != "auto" else "an estimate, summed over the buckets"
        if form == "auto":
            form = "lazy" if lazy < eager else "eager"
        which = "one row after the other along the path, a launch each" if form == "lazy" else "all rows at once"
        message = f"{form}: {which}; eager {eager:.1f} us, lazy at most {lazy:.1f} us: {why}"
        both = {"eager": (eager, "all rows at once"), "lazy": (lazy, "those of the path, at most, a launch each")}
        (cost, _), (other_cost, other) = both[form], both[rejected := "lazy" if form == "eager" else "eager"]
        rest = (Rejected(rejected, other, other_cost),)
        self.remark(ctx, message, bad.location, Choice(_ROWS, form, why, rest, cost, "us"))
        bad.attrs["rows"] = form
        if form == "lazy":
            drawn.visit(module)


def _mode(source: Op | None) -> str:
    """How the tokens were found that are walked along."""
    if source is not None and source.opcode == "sample.accept":
        weigh = source["weights"].source
        assert weigh is not None
        return str(weigh.attrs["mode"])
    return "target_only" if source is not None and source.opcode == "sample.draw" else "greedy"


@dataclass(frozen=True)
class _Drawn:
    """Verification that draws a token of every row, with the ops that it takes, which may draw of some rows alone.

    Attributes:
        walk: the walk along what is drawn.
        draw: what draws.
        cuts: what leaves only some tokens, one after the other.
        bad: whether a row of the path is bad.

    """

    walk: Op
    draw: Op
    cuts: tuple[Op, ...]
    bad: Op

    @classmethod
    def of(cls, module: Module, bad: Op) -> _Drawn | None:
        """The verification that asks whether its path is bad; None if something else needs what it has of all rows."""
        walk, draw = bad["accept_index"].source, bad["bad"].source
        if walk is None or draw is None or draw.opcode != "sample.draw" or walk.opcode != "verify.greedy":
            return None
        cuts: list[Op] = []
        reader, cut = draw, draw.get("cuts")
        while cut is not None and cut.source is not None:
            if module.users(cut) != [reader] or cut.source["scales"] is not draw["scales"]:
                return None
            reader, cut = cut.source, cut.source.get("within")
            cuts.insert(0, reader)
        one_row = all(op["logits"] is draw["logits"] for op in cuts) and cut is None
        alone = module.users(draw.out("index")) == [walk] and module.users(draw.out("bad")) == [bad]
        reads = walk["argmax"] is draw.out("index") and not set(draw.results) & set(module.outputs.values())
        return cls(walk, draw, tuple(cuts), bad) if one_row and alone and reads else None

    def microseconds(self, module: Module) -> tuple[float, float]:
        """How long all rows take, and those of a path at most, summed over the buckets."""
        _, nodes, vocab = tensor_type(self.draw["logits"]).sizes(module.dims)
        path, launches = min(module.size("A"), nodes), LAUNCH * (2 if self.cuts else 1)
        logit = DRAW * (TABLES if vocabulary.loads_tables(self.draw) else 1)
        row = vocab * (logit + (CUT if self.cuts else 0))
        buckets = module.decl(Options).buckets
        eager = sum(launches + each * nodes * row for each in buckets)
        return eager, sum(path * (launches + each * row) for each in buckets)

    def visit(self, module: Module) -> None:
        """Draw of the root's row, then of the row of the child that has the token, and so on to the end of the walk."""
        phase, axis = self.draw.phase, tensor_type(self.draw["logits"]).shape[1]
        rows, tokens, nodes, flags = self.walk["rows"], list[Value](), list[Value](), list[Value]()
        links = [value for value in (self.walk.get("parent"),) if value is not None]

        def op(opcode: str, *operands: Value, names: Sequence[str], **attrs: Attr) -> tuple[Value, ...]:
            """An op before the walk."""
            at = module.phases[phase].index(self.walk)
            results = [(name, None) for name in names]
            made = module.add_op(phase, opcode, operands, results, attrs, self.draw.location, at)
            assign_types(module, made)
            return made.results

        (node,) = op("walk.root", rows, names=("node0",))
        for i in range(min(module.size("A"), module.size(str(axis)))):
            if i > 0:
                given = (self.walk["tokens"], tokens[-1], rows, node, *links)
                rows, node = op("walk.step", *given, names=(f"rows{i}", f"node{i}"))
            (row,) = op("vocab.row", self.draw["logits"], node, names=(f"row{i}",))
            keys, scales = (op("walk.at", self.draw[x], node, names=(f"{x}{i}",))[0] for x in ("keys", "scales"))
            replaced = {self.draw["logits"]: row, self.draw["scales"]: scales}
            cuts: tuple[Value, ...] = ()
            for cut in self.cuts:
                operands = [replaced.get(value, value) for name, value in cut.named.items() if name != "within"]
                cuts = op(cut.opcode, *operands, *cuts, names=(f"{cut.result.name}{i}",), **cut.attrs)
            names = (f"token{i}", f"bad{i}")
            token, flag = op(self.draw.opcode, row, rows, keys, scales, *cuts, names=names, **self.draw.attrs)
            tokens.append(token)
            nodes.append(node)
            flags.append(flag)
        names = [f"{value.name}_path" for value in self.walk.results]
        path = op("verify.path", *tokens, *nodes, names=names, axis=str(axis), parts=len(nodes))
        self._replace(module, path, flags)

    def _replace(self, module: Module, path: Sequence[Value], flags: Sequence[Value]) -> None:
        """Let what follows read the path, and flags of the rows that were drawn; the others are gone."""
        raises = module.users(self.bad.result)
        for user in raises:
            health = user["health"]
            for flag in flags[:-1]:
                at = module.phases[user.phase].index(user)
                name = [(user.result.name, None)]
                raised = module.add_op(user.phase, user.opcode, (health, flag), name, user.attrs, user.location, at)
                assign_types(module, raised)
                health = raised.result
            module.set_operands(user, (health, flags[-1]))
        module.erase(self.bad)
        names = [value.name for value in self.walk.results]
        for old, new in zip(self.walk.results, path, strict=True):
            module.replace_uses(old, new)
        for gone in (self.walk, self.draw, *reversed(self.cuts)):
            module.erase(gone)
        for new, name in zip(path, names, strict=True):
            module.rename(new, name)
