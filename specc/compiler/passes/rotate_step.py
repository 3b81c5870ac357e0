"""rotate-step: the step begins where the engine has run the target, and ends with the drafts of the next one.

A step is draft, then verify and extend. Where an engine runs the target on its own, what it can call is the rest:
verify and extend, then the drafts that its next forward of the target reads. That is the same loop, cut elsewhere, so
the pass does what a compiler does to a loop that is rotated: what was drafted before the target is computed from what
the step would have carried to it, instead of being loaded by the next one, and in prefill from what that would have
carried. The drafts are carried instead; what is left of the carry, liveness finds.

Of several shapes each step drafts for the deepest, and verifies the first drafts of what the last one left, as many as
its own shape has. Who runs it may stop drafting where the next step's shape ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from specc.compiler.config import LoadedConfig
from specc.compiler.ir.analysis.liveness import hidden_result, sweep
from specc.compiler.ir.core import PATH, SECOND_HALF, Attr, CarriedValue, Module, Op, Value, entry_of, is_state
from specc.compiler.ir.infer import assign_types, insert_behind
from specc.compiler.ir.nodes import is_external
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops.budget import LOGITS, SHARE, UNPACK
from specc.compiler.ir.ops.carry import LOAD, STORE
from specc.compiler.ir.ops.model import COMMIT_STATE, GIVEN_HIDDEN, GIVEN_LOGITS, GIVEN_PADDED, TARGET
from specc.compiler.ir.ops.rejection import LOGITS_FIELD, MASS, row_fields
from specc.compiler.ir.types import TensorType
from specc.compiler.pass_manager.options import SIZE
from specc.compiler.pass_manager.pass_base import Context, Pass
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.location import Location

DRAFTS = "drafts"
"""The field, and the output, that has the drafts i64[B, S] of the next step."""
_CHAINS = ("chain.join", "chain.start", "chain.append")
ROWS, LENGTHS = "req_pool_indices", "seq_lens"


@dataclass(frozen=True)
class RotateStep(Pass):
    """Cut the loop of steps at the target's forward, where the configuration asks for it."""

    name = "rotate-step"
    requires = frozenset({"typed", "live", "tree-form", "verify-selected", "compacted"})
    establishes = frozenset({"live"})
    until = "kv-bound"

    rotated: bool = False
    """Whether to."""
    path: Annotated[int, SIZE] = 0
    """Tokens that the target's forward is over, of every request; 0: the bonus token and all that is drafted."""
    row: Annotated[int, SIZE] = 0
    """Elements from a row of the logits that the engine hands over to the next one; 0: as many as there are tokens."""

    @classmethod
    def of(cls, loaded: LoadedConfig) -> RotateStep:
        """As ``step``, the shape and the target's ``padded_vocab_size`` say."""
        config = loaded.config
        path = config.shape.num_nodes if config.shape != config.proposed else 0
        return cls(config.rotated, path, config.target.padded_vocab_size or 0)

    def run(self, module: Module, ctx: Context) -> None:
        """Rotate the step, if it is to be."""
        if not self.rotated:
            return
        body = _Body.of(module)
        kept = body.kept(module)
        _check(module, body, kept, ctx)
        if self.path:
            _check_forwards(body, ctx)
        body.close(module)
        (lengths,) = module.find("commit.lengths")
        after = {**_stored(module, "step"), LENGTHS: lengths.out("new_seq_lens")}
        before = {**_stored(module, "prefill"), LENGTHS: module.inputs[LENGTHS]}
        module.carries[DRAFTS] = CarriedValue(DRAFTS, TensorType("i64", ("B", "S")), body.location, limit="V")
        for name, value in kept.items():
            assert isinstance(value.type, TensorType)
            module.carries[name] = CarriedValue(name, value.type, body.location)
        _split_health(module)
        module.outputs[f"propose.{DRAFTS}"] = _redraft(module, body, kept, _Again("redraft", "propose", after))
        _redraft(module, body, kept, _Again("prefill", "prefill", before))
        _verify_carried(module, body, kept)
        _give(module, body.target, self.row)
        body.erase(module)
        if self.path:
            module.dims[PATH] = replace(module.dims[PATH], size=self.path)
        for removed in sweep(module):
            self.remark(ctx, f"a rotated step does not need {removed.what}: {removed.verdict}", removed.location)
        forwards = sum(is_external(op) for op in body.ops)
        what = f"the engine runs the target and hands over its logits; {forwards} forwards draft at the end of a step"
        what += f" instead of its beginning, and at the end of prefill; @{DRAFTS} are carried"
        what += f", of which the first {self.path - 1} are verified" if self.path else ""
        self.remark(ctx, what, ctx.at("step"))


@dataclass(frozen=True)
class _Body:
    """What drafts: the forward of the target that reads its tokens, its ops in order, and what it says of health."""

    target: Op
    ops: tuple[Op, ...]
    raises: tuple[Op, ...]

    @classmethod
    def of(cls, module: Module) -> _Body:
        """Everything that the tokens of the target's forward are made of.

        Raises:
            DiagnosticError: ``ir/invalid``, it is no chain with one forward of the target (only in edited text).
        """
        targets = module.find(TARGET)
        if len(targets) != 1 or module.size("K") != 1:
            raise DiagnosticError(Diagnostic("ir/invalid", "only a chain with one forward of the target is rotated"))
        ops: set[Op] = set()
        pending = [targets[0]["tokens"]]
        while pending:
            source = pending.pop().source
            if source is not None and source not in ops:
                ops.add(source)
                pending += source.operands
        drafted = _drafted(sorted(ops, key=module.order().__getitem__))
        ops |= {op for op in module.find(MASS) if op["logits"].source in ops and op["logits"] in drafted}
        order = module.order()
        raises = [op for op in module.find("health.raise") if op["bad"].source in ops]
        return cls(targets[0], tuple(sorted(ops, key=order.__getitem__)), tuple(raises))

    @property
    def tokens(self) -> Value:
        """What it drafts, i64[B, A], the bonus token first."""
        return self.target["tokens"]

    @property
    def location(self) -> Location | None:
        """Where the configuration asks for it."""
        return self.tokens.source.location if self.tokens.source is not None else None

    def drafted(self) -> set[Value]:
        """What depends on a forward of it."""
        return _drafted(self.ops)

    def kept(self, module: Module) -> dict[str, Value]:
        """What drafts were drawn from, which verification reads, by the fields that carry it."""
        inside, kept = {*self.ops, *self.raises}, dict[str, Value]()
        masses = [op.result for op in self.ops if op.opcode == MASS]
        for mass in masses:
            assert mass.source is not None
            if not all(user in inside for user in module.users(mass)):
                column = sum(name.startswith(LOGITS_FIELD) for name in (*module.carries, *kept))
                kept |= dict(zip(row_fields(column), (mass.source["logits"], mass), strict=True))
        return kept

    def close(self, module: Module) -> None:
        """Let keys and values, and health, go on behind it as they were before it."""
        for op in reversed(self.ops):
            for after in (value for value in op.results if is_state(value)):
                before = next(value for value in op.operands if value.type == after.type)
                for user in (user for user in module.users(after) if user not in self.ops):
                    module.replace_operand(user, after, _first(self, before))
        for op in reversed(self.raises):
            module.replace_uses(op.result, op["health"])

    def erase(self, module: Module) -> None:
        """Take out what nothing else reads."""
        for op in reversed((*self.ops, *self.raises)):
            if not any(module.users(value) or value in module.outputs.values() for value in op.results):
                module.erase(op)


@dataclass(frozen=True)
class _Again:
    """Where the body is once more: a phase, what names of its outputs begin with, and what is carried on there."""

    phase: str
    outputs: str
    carried: Mapping[str, Value]

    @property
    def stem(self) -> str:
        """What names of values begin with."""
        return "prefill_" if self.phase == "prefill" else ""


def _drafted(ops: Iterable[Op]) -> set[Value]:
    """What depends on a forward among ops in their order."""
    values: set[Value] = set()
    for op in ops:
        if is_external(op) or values & set(op.operands):
            values |= set(op.results)
    return values


def _first(body: _Body, state: Value) -> Value:
    """Keys and values as they are before the body."""
    while state.source in body.ops:
        state = next(value for value in state.source.operands if value.type == state.type)
    return state


def _check(module: Module, body: _Body, kept: Mapping[str, Value], ctx: Context) -> None:
    """Refuse a body of which more is read than tokens, or that loads what nobody stores as it is."""
    stored = (_stored(module, "step").keys() & _stored(module, "prefill").keys()) | {LENGTHS, *_appended(module)}
    loaded = [str(op.attrs["field"]) for op in body.ops if op.has(Trait.LOADS)]
    inside = {*body.ops, *body.raises}
    lost = [name for name in loaded if name not in stored and not module.carries[name].given]
    why = [f"@{name} is not stored as a whole" for name in lost]
    for value in body.drafted() - {body.tokens, *kept.values()}:
        readers = [user for user in module.users(value) if user not in inside and not is_state(value)]
        why += [f"%{value.name} is read after it, by {user.opcode}" for user in readers]
    opcode = body.tokens.source.opcode if body.tokens.source is not None else "nothing"
    why += [] if opcode in _CHAINS else [f"its tokens are made by {opcode}"]
    if body.target.attrs.get("extras"):
        why.append("the target's forward hands over more than logits and hidden states")
    if why:
        message = f"what drafts cannot be rotated in this version: {sorted(why)[0]}"
        raise DiagnosticError(Diagnostic("config/not-yet", message, ctx.at("step"), "write step: whole"))


def _check_forwards(body: _Body, ctx: Context) -> None:
    """Refuse a draft that sees the path at once, of which another step verifies less than it drafts."""
    for op in filter(is_external, body.ops):
        if any(isinstance(value.type, TensorType) and PATH in value.type.shape for value in op.operands):
            message = "a rotated step of several shapes whose draft reads the whole path is not in this version"
            raise DiagnosticError(Diagnostic("config/not-yet", message, ctx.at("num_steps"), "write one num_steps"))


def _split_health(module: Module) -> None:
    """Let each half have a health word of its own."""
    word = module.outputs["health"]
    word_of_propose = word
    while word.source is not None and word.source.phase in SECOND_HALF:
        word = word.source["health"]
    (clear,) = (op for op in module.find("health.clear") if entry_of(op.phase) == "step")
    own = insert_behind(module, clear, clear.opcode, clear.operands, ("propose_health",))
    for op in (op for op in module.users(word) if op.phase in SECOND_HALF):
        module.replace_operand(op, word, own.result)
    module.outputs |= {"health": word, "propose.health": own.result if word_of_propose is word else word_of_propose}


def _stored(module: Module, entry: str) -> dict[str, Value]:
    """What an entry carries on, by field, of what is stored as it is."""
    stores = [op for op in module.ops(entry) if op.has(Trait.STORES)]
    return {str(op.attrs["field"]): op["value"] for op in stores}


def _appended(module: Module) -> set[str]:
    """Fields that grow in the step, and are loaded again where the rest of an entry has run."""
    return {str(op.attrs["field"]) for op in module.find("carry.append")}


def _redraft(module: Module, body: _Body, kept: Mapping[str, Value], again: _Again) -> Value:
    """The body once more, of what is carried on instead of what is loaded: the drafts i64[B, S], which are stored."""
    given = {module.inputs[LENGTHS]: again.carried[LENGTHS]}
    states = [value for op in body.ops for value in op.operands if value.source is None and is_state(value)]
    grown = _appended(module)
    given |= {state: _last_state(module, body, state, entry_of(again.phase)) for state in states}
    for op in body.ops:
        operands = [given.get(value, value) for value in op.operands]
        if op.opcode == "chain.join":
            given[op.result] = given.get(op["drafts"], op["drafts"])
        elif op.opcode == "chain.start":
            _write(module, op, again, given, "chain.first", operands[1:], {})
        elif op.has(Trait.LOADS) and op.attrs["field"] in again.carried and op.attrs["field"] not in grown:
            given[op.result] = again.carried[str(op.attrs["field"])]
        else:
            shift = {"column": int(op.attrs["column"]) - 1} if op.opcode == "chain.append" else {}
            _write(module, op, again, given, op.opcode, operands, {**op.attrs, **shift})
    drafts, location = given[body.tokens], module.carries[DRAFTS].location
    for name, value in {DRAFTS: drafts, **{name: given[value] for name, value in kept.items()}}.items():
        module.add_op(again.phase, STORE, (module.inputs[ROWS], value), (), {"field": name}, location)
    for op in body.raises:
        health = module.outputs[f"{again.outputs}.health"]
        _write(module, op, again, given, op.opcode, [health, given[op["bad"]]], op.attrs)
        module.outputs[f"{again.outputs}.health"] = given[op.result]
    return drafts


def _write(
    module: Module, op: Op, again: _Again, given: dict[Value, Value], opcode: str, operands: Sequence[Value],
    attrs: Mapping[str, Attr],
) -> None:  # fmt: skip
    """An op of the body once more; what it gives stands for what it gave."""
    names = [(f"{again.stem}{value.name}", None) for value in op.results]
    copy = module.add_op(again.phase, opcode, operands, names, attrs, op.location)
    assign_types(module, copy)
    given |= dict(zip(op.results, copy.results, strict=True))


def _last_state(module: Module, body: _Body, state: Value, entry: str) -> Value:
    """What has become of keys and values when the rest of an entry has run."""
    others = [op for op in module.ops(entry) if op not in body.ops]
    later = [value for op in others for value in op.results if value.type == state.type]
    return later[-1] if later else state


def _verify_carried(module: Module, body: _Body, kept: Mapping[str, Value]) -> None:
    """Let the step verify the drafts that are carried, below the bonus token that is, by what they were drawn from."""
    start = next(op for op in body.ops if op.opcode in ("chain.join", "chain.start"))
    where, names = (module.inputs[ROWS],), [("carried_drafts", None)]
    load = module.add_op("prepare", LOAD, where, names, {"field": DRAFTS}, body.location)
    assign_types(module, load)
    inside = {*body.ops, *body.raises}
    for field, value in kept.items():
        names = [(f"carried_{field}", None)]
        given = module.add_op("prepare", LOAD, where, names, {"field": field}, body.location)
        assign_types(module, given)
        for user in [user for user in module.users(value) if user not in inside and user.phase not in SECOND_HALF]:
            module.replace_operand(user, value, given.result)
    join = module.add_op("prepare", "chain.join", (start["bonus"], load.result), [("nodes", None)], {}, body.location)
    assign_types(module, join)
    module.replace_uses(body.tokens, join.result)


def _give(module: Module, target: Op, row: int) -> None:
    """What the target's forward gave, the engine hands over: the logits first, the hidden rows where they are read."""
    module.replace_uses(target.out("kv"), target["kv"])
    for commit in module.find(COMMIT_STATE):  # who runs the target brings its state back as well
        module.erase(commit)
    given = {"logits_dtype": target.attrs["logits_dtype"]} | ({"row": row} if row else {})
    opcode = GIVEN_PADDED if row else GIVEN_LOGITS
    _hand_over(module, "prepare", opcode, target.out("logits"), given, target.location)
    hidden = hidden_result(target)
    if hidden is not None:
        _defer(module, hidden)
        given = {"dtype": target.attrs["dtype"], "width": target.attrs["width"]}
        _hand_over(module, "extend", GIVEN_HIDDEN, hidden, given, target.location)
    module.erase(target)


def _defer(module: Module, hidden: Value) -> None:
    """What is made of hidden rows is made in the second half, which they are handed over to."""
    deferred, moved = {hidden}, 0
    for op in list(module.ops("step")):
        if deferred & set(op.operands):
            deferred |= set(op.results)
            if op.phase not in SECOND_HALF:
                module.move(op, SECOND_HALF[0], moved)
                moved += 1


def _hand_over(
    module: Module, phase: str, opcode: str, value: Value, attrs: Mapping[str, Attr], location: Location | None
) -> None:
    """Let what the engine hands over stand for a value, from the beginning of a phase on.

    Where it says how many rows each request has, they are packed, and brought to the requests behind it.
    """
    share = []
    if SHARE[0] in module.inputs:
        share = [module.inputs.get(name) or module.add_input(name, TensorType("i32", ("B",))) for name in SHARE]
    attrs = {**attrs, "per": "G"} if share else attrs
    op = module.add_op(phase, opcode, (), [(value.name, None)], attrs, location, 0)
    assign_types(module, op)
    given = op.result
    if share:
        by_request = LOGITS if opcode in (GIVEN_LOGITS, GIVEN_PADDED) else UNPACK
        names = (f"request_{value.name}",)
        given = insert_behind(module, op, by_request, (given, *share), names).result
    module.replace_uses(value, given)
