"""commit-states: who brings a recurrent state back to the last accepted token, the engine or the program, and how.

A rejected token's keys and values are written again later. A state has every token mixed into it, so on a chain, too,
one of those that a verification leaves has to be committed, or what accepted nodes add to it be added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Annotated, Any, Literal, NamedTuple

from specc.compiler.config import LoadedConfig
from specc.compiler.config.block import StateForm
from specc.compiler.config.models.states import RecurrentState
from specc.compiler.ir.core import CarriedValue, Module, Op, Value
from specc.compiler.ir.infer import assign_types
from specc.compiler.ir.ops.carry import LOAD, STORE
from specc.compiler.ir.ops.model import COMMIT_STATE, PREFILL_TARGET, TARGET
from specc.compiler.ir.ops.state_forms import BEGIN
from specc.compiler.ir.types import DTYPES, NAMES, StateType, TensorType
from specc.compiler.pass_manager.options import SIZE, Range
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.runtime.plan.fields import STATE_POINT
from specc.runtime.plan.nodes import OpCall
from specc.runtime.plan.recurrent.state_tables import (
    FOLD,
    KEPT_INTERVAL,
    KEPT_ROWS,
    POINT,
    SELECT,
    STATE_ROWS,
    StateTensor,
    folded_parts,
)

Number = Literal["f32", "bf16", "f16"]
_WHAT = "recurrent state of the target"
_CHOSEN = {
    "engine": "committed by the engine, of the last accepted node",
    "select": "committed by one launch, of the last accepted node",
    "fold": "committed by one launch, advanced by what accepted nodes add to it",
    "point": "left where the last accepted node has it, and a number says where",
}
_WAYS = {
    "select": "copied from the last accepted node",
    "fold": "advanced by what accepted nodes add to it",
    "point": "left where the last accepted node has it",
}
_UNKNOWN = "nothing says what the state of a rank is"
_WHY = "every token is mixed into it, and a rejected one would stay there"


class _FormCost(NamedTuple):
    """What a form takes: bytes that a step moves for a request, its forward included, and bytes of what is pending.

    The latter are those of a full batch, or, where pending states stay, of all requests that there may be.
    """

    moved: int
    held: int


@dataclass(frozen=True)
class CommitStates(Pass):
    """Leave the commit to the engine, or lower it to a copy, to what accepted nodes add, or to the number of a node."""

    name = "commit-states"
    requires = frozenset({"typed", "compacted"})

    form: StateForm = "engine"
    """``auto`` is the one of the program's that moves the fewest bytes."""
    layers: Annotated[int, SIZE] = 0
    """Those that keep a state."""
    size: Annotated[int, Range(0, 1 << 40)] = 0
    """Bytes of a request in one of them; 0 where that is not known."""
    heads: Annotated[int, SIZE] = 0
    """Matrices of a layer; 0 where nothing says what the state is."""
    values: Annotated[int, SIZE] = 0
    """Value channels of a matrix."""
    keys: Annotated[int, SIZE] = 0
    """Key channels of a matrix."""
    groups: Annotated[int, SIZE] = 0
    """Keys of a node, each of equally many matrices."""
    decay: Literal["head", "channel"] = "head"
    """The owner of a decay: a matrix, or a key channel of it."""
    matrix: Number = "f32"
    """Element type of matrices."""
    channels: Annotated[int, SIZE] = 0
    """Those of the convolution."""
    window: Annotated[int, SIZE] = 0
    """Inputs of a channel that are kept."""
    key: Number = "f32"
    """Element type of keys."""
    input: Number = "f32"
    """Element type of inputs."""
    requests: Annotated[int, SIZE] = 0
    """Those that there may be at once, of which a batch is a part; 0 is the largest batch."""
    batch: Annotated[int, SIZE] = 0
    """The largest batch of any shape; 0 is that of this one."""
    nodes: Annotated[int, SIZE] = 0
    """The most nodes of any shape; 0 is those of this one."""
    path: Annotated[int, SIZE] = 0
    """The longest path of any shape, likewise."""

    @classmethod
    def of(cls, loaded: LoadedConfig) -> CommitStates:
        """As the target's ``state_form`` says, with its share of the state on a rank; alike for all shapes."""
        config = loaded.config
        target, ranks = config.target, config.file.tensor_parallel
        sizes = {} if target.state is None else _sizes(target.state, ranks, NAMES[target.dtype])
        most: dict[str, Any] = {}
        if target.state_form == "auto":
            most = {"requests": config.max_requests, "batch": max(b[-1] for b in config.buckets_of.values())}
            most |= {"nodes": max(shape.num_nodes for shape in config.shapes), "path": config.deepest + 1}
        return cls(target.state_form, target.state_layers, target.state_bytes, **sizes, **most)

    def run(self, module: Module, ctx: Context) -> None:
        """Choose for every commit."""
        for commit in module.find(COMMIT_STATE):
            form = self._cheapest(module, commit) if self.form == "auto" else self.form
            self._tell(module, commit, form, ctx)
            if form == "point":
                self._point(module, commit, ctx)
            elif form != "engine":
                self._lower(module, commit, form)

    def _lower(self, module: Module, commit: Op, form: str) -> None:
        """Write the state to where the engine keeps that of the request."""
        rows = TensorType("i32", ("P",))
        types = {STATE_ROWS: rows, KEPT_ROWS: rows, KEPT_INTERVAL: TensorType("i64", (1,))}
        tables = [module.add_input(name, type_) for name, type_ in types.items()]
        commit.opcode = SELECT if form == "select" else FOLD
        commit.attrs = {"layers": self.layers, "bytes": self.size}
        if form == "fold":
            commit.attrs = {**self._sizes, "layers": self.layers, "bytes": self._state, "record": self._record}
        module.set_operands(commit, (*commit.operands, *tables))

    def _point(self, module: Module, commit: Op, ctx: Context) -> None:
        """Carry which node's state is that of the request, and let the next verification go on from there."""
        pending, at = commit["state"], ctx.at("target", "state_form") or commit.location
        verify, store = pending.source, {"field": STATE_POINT}
        if verify is None or verify.opcode != TARGET:
            message = "state_form: point where another forward than the target's own leaves states"
            raise DiagnosticError(Diagnostic("config/not-yet", message, at, "write select"))
        module.carries[STATE_POINT] = CarriedValue(STATE_POINT, TensorType("i32", ("B",)), at)

        def add(phase: str, opcode: str, operands: tuple[Value, ...], *names: str, **attrs: str | int) -> Op:
            made = module.add_op(phase, opcode, operands, [(name, None) for name in names], attrs, at)
            assign_types(module, made)
            return made

        for prefill in module.find(PREFILL_TARGET):
            begin = add("prefill", BEGIN, (prefill["rows"],), "first_point")
            add("prefill", STORE, (prefill["rows"], begin.result), **store)
        point = add("prepare", LOAD, (verify["rows"],), STATE_POINT, **store).result
        given = [(value, point) if name == "state" else (value,) for name, value in verify.named.items()]
        verify.attrs["point"] = "i32"
        module.set_operands(verify, [*chain.from_iterable(given)])
        path = point, commit["accept_index"], commit["accept_lens"], pending
        sizes = {"layers": self.layers, "nodes": module.size(_along(commit))}
        chosen = add("commit", POINT, path, f"new_{STATE_POINT}", commit.result.name, **sizes)
        module.replace(commit, {commit.result: chosen.out("state")})
        last = [op.phase for op in module.find(STORE) if op.phase != "prefill"]
        add(last[-1] if last else "commit", STORE, (verify["rows"], chosen.out("point")), **store)

    @property
    def _sizes(self) -> dict[str, Any]:
        """The attributes of a fold that say what the state is."""
        names = ("heads", "values", "keys", "groups", "decay", "matrix", "key", "channels", "window", "input")
        return {name: getattr(self, name) for name in names}

    @property
    def _parts(self) -> tuple[StateTensor, ...]:
        return folded_parts(OpCall(FOLD, (), (), self._sizes)) if self.heads else ()

    @property
    def _state(self) -> int:
        """Bytes of a request in one layer on a rank, where it is known what the state is."""
        return sum(map(_bytes, self._parts))

    @property
    def _record(self) -> int:
        """Bytes that a node adds in one layer, likewise."""
        return sum(_bytes(record) for part in self._parts for record in part.records)

    def _costs(self, module: Module, commit: Op) -> Mapping[str, _FormCost]:
        """What each of the program's forms takes, in states of one byte where no more is known.

        A forward reads a state, and writes that of each node, or what the node adds. A commit reads and writes one.
        """
        nodes, path = self.nodes or module.size(_along(commit)), self.path or module.size("A")
        batch = self.batch or module.size("B")
        state = self.layers * (self._state or self.size or 1)
        record = self.layers * self._record
        costs = {
            "select": _FormCost((nodes + 3) * state, nodes * state * batch),
            "point": _FormCost((nodes + 1) * state, nodes * state * max(self.requests, batch)),
        }
        if self.heads:
            costs["fold"] = _FormCost(3 * state + (nodes + path) * record, nodes * record * batch)
        return costs

    def _cheapest(self, module: Module, commit: Op) -> str:
        """The form that moves the fewest bytes, of those that nothing is against."""
        costs = self._costs(module, commit)
        return min((form for form in costs if not self._against(form, costs)), key=lambda form: costs[form])

    def _against(self, form: str, costs: Mapping[str, _FormCost]) -> str:
        """What is against a form, however few bytes it moves; nothing against one that may be chosen."""
        if form == "point" and costs["point"].held > costs["select"].held:
            return "states would be pending of all requests that there may be, not of a batch"
        if form == "fold" and self.matrix != "f32":
            return "a state of 16 bits would be rounded otherwise than its model's code does"
        return ""

    def _tell(self, module: Module, commit: Op, form: str, ctx: Context) -> None:
        """Say what was chosen, and how much it moves and takes."""
        nodes, path, batch = module.size(_along(commit)), module.size("A"), module.size("B")
        copied = 2 * self.layers * self.size
        moved = copied if form != "fold" else self.layers * (2 * self._state + path * self._record)
        told = f"{moved:,} bytes are read and written for a request" if moved else "its bytes are not known"
        states, records = self.layers * nodes * self.size, self.layers * nodes * self._record
        if form == "fold":
            told += f"; what {nodes} nodes add takes {records:,}, their states would take {states:,}"
        elif form == "point":
            moved, told = 0, "nothing is read and written"
            told += f"; the states of {nodes} nodes, and the one before, take {states // nodes * (nodes + 1):,}"
        elif form == "select" and states:
            told += f"; the states of {nodes} nodes take {states:,}"
            told += f", what they add would take {records:,}" if records else ""
        others, cost, why = (*self._rejected(form, nodes, copied * batch),), moved * batch or None, _WHY
        if self.form == "auto":
            others, cost, why = self._compared(module, commit, form)
        choice = Choice(_WHAT, _CHOSEN[form], why, others, cost, "bytes")
        self.remark(ctx, f"the {_WHAT} is {choice.chosen}, because {why}: {told}", commit.location, choice)

    def _compared(self, module: Module, commit: Op, form: str) -> tuple[tuple[Rejected, ...], int | None, str]:
        """The other forms with what a largest batch of each moves, and that of the one that was chosen, with why."""
        costs, batch = self._costs(module, commit), self.batch or module.size("B")

        def moved(name: str) -> int | None:
            return costs[name].moved * batch if self.size or self.heads else None

        others = [
            Rejected(_WAYS[name], self._against(name, costs) or "it moves more bytes", moved(name))
            for name in costs
            if name != form
        ]
        if "fold" not in costs:
            others.append(Rejected(_WAYS["fold"], _UNKNOWN))
        return tuple(others), moved(form), "a step moves the fewest bytes by it, of the ways that a program has"

    def _rejected(self, form: str, nodes: int, copied: int) -> Iterator[Rejected]:
        """What else could have become of a state; copying it moves so many bytes."""
        yield Rejected("left as it is", "it is that of the last node, accepted or not")
        if form == "engine":
            yield Rejected("a launch of the program's", "the state lies where the engine has it")
            return
        does = {
            "select": "a launch of the program's copies all layers at once",
            "fold": "a launch of the program's advances all layers at once",
            "point": "a number is enough, which a launch computes that there is anyway",
        }
        yield Rejected("committed by the engine", does[form])
        if form == "fold":
            why = f"a verification would write the states of all {nodes} nodes"
            yield Rejected(_WAYS["select"], why, copied or None)
        elif form == "point":
            yield Rejected(_WAYS["select"], "the next verification reads it where it is", copied or None)
        else:
            known = "a verification leaves states, and nothing that nodes add to them"
            why = known if self.heads else _UNKNOWN
            yield Rejected(_WAYS["fold"], why)


def _along(commit: Op) -> str:
    """The axis of the nodes that have left a state."""
    (along,) = (type_.along for value in commit.operands if isinstance(type_ := value.type, StateType))
    return along


def _sizes(state: RecurrentState, ranks: int, dtype: str) -> dict[str, Any]:
    """The options that say what a state is, of which a rank has its share; none of one that is not shared out so."""
    if [*state.faults(ranks)]:
        return {}
    return {
        "heads": state.heads // ranks,
        "values": state.rows,
        "keys": state.columns,
        "groups": state.groups // ranks,
        "decay": "channel" if state.decays_channels else "head",
        "matrix": NAMES[state.matrices],
        "key": NAMES[state.keys],
        "channels": state.convolution_channels(ranks),
        "window": state.kernel - 1,
        "input": dtype,
    }


def _bytes(part: StateTensor) -> int:
    return prod(part.shape) * DTYPES[part.dtype].bytes
