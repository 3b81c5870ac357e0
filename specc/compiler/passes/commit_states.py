"""commit-states: who brings a recurrent state back to the last accepted token, the engine or a launch of the program.

A rejected token's keys and values are written again later. A state has every token mixed into it, so on a chain, too,
one of those that a verification leaves has to be committed, or what accepted nodes add to it be added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Literal

from specc.compiler.config import LoadedConfig
from specc.compiler.config.models.states import RecurrentState
from specc.compiler.config.schema import StateForm
from specc.compiler.ir.core import Module, Op
from specc.compiler.ir.ops.model import COMMIT_STATE
from specc.compiler.ir.types import DTYPES, NAMES, StateType, TensorType
from specc.compiler.pass_manager.options import SIZE, Range
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.runtime.plan.nodes import OpCall
from specc.runtime.plan.recurrent.state_tables import (
    FOLD,
    KEPT_INTERVAL,
    KEPT_ROWS,
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
}
_WHY = "every token is mixed into it, and a rejected one would stay there"


@dataclass(frozen=True)
class CommitStates(Pass):
    """Leave the commit to the engine, or lower it to a copy of a node's state, or to what accepted nodes add to it."""

    name = "commit-states"
    requires = frozenset({"typed", "compacted"})

    form: StateForm = "engine"
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

    @classmethod
    def of(cls, loaded: LoadedConfig) -> CommitStates:
        """As the target's ``state_form`` says, with its share of the state on a rank."""
        target, ranks = loaded.config.target, loaded.config.file.tensor_parallel
        sizes = {} if target.state is None else _sizes(target.state, ranks, NAMES[target.dtype])
        return cls(target.state_form, target.state_layers, target.state_bytes, **sizes)

    def run(self, module: Module, ctx: Context) -> None:
        """Choose for every commit."""
        for commit in module.find(COMMIT_STATE):
            self._tell(module, commit, ctx)
            if self.form != "engine":
                self._lower(module, commit)

    def _lower(self, module: Module, commit: Op) -> None:
        """Write the state to where the engine keeps that of the request."""
        rows = TensorType("i32", ("P",))
        types = {STATE_ROWS: rows, KEPT_ROWS: rows, KEPT_INTERVAL: TensorType("i64", (1,))}
        tables = [module.add_input(name, type_) for name, type_ in types.items()]
        commit.opcode = SELECT if self.form == "select" else FOLD
        commit.attrs = {"layers": self.layers, "bytes": self.size}
        if self.form == "fold":
            commit.attrs = {**self._sizes, "layers": self.layers, "bytes": self._state, "record": self._record}
        module.set_operands(commit, (*commit.operands, *tables))

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

    def _tell(self, module: Module, commit: Op, ctx: Context) -> None:
        """Say what was chosen, and how much it moves and takes."""
        (along,) = (type_.along for value in commit.operands if isinstance(type_ := value.type, StateType))
        nodes, path, batch = module.size(along), module.size("A"), module.size("B")
        copied = 2 * self.layers * self.size
        moved = copied if self.form != "fold" else self.layers * (2 * self._state + path * self._record)
        told = f"{moved:,} bytes are read and written for a request" if moved else "its bytes are not known"
        states, records = self.layers * nodes * self.size, self.layers * nodes * self._record
        if self.form == "fold":
            told += f"; what {nodes} nodes add takes {records:,}, their states would take {states:,}"
        elif self.form == "select" and states:
            told += f"; the states of {nodes} nodes take {states:,}"
            told += f", what they add would take {records:,}" if records else ""
        others = (*self._rejected(nodes, copied * batch),)
        choice = Choice(_WHAT, _CHOSEN[self.form], _WHY, others, moved * batch or None, "bytes")
        self.remark(ctx, f"the {_WHAT} is {choice.chosen}, because {_WHY}: {told}", commit.location, choice)

    def _rejected(self, nodes: int, copied: int) -> Iterator[Rejected]:
        """What else could have become of a state; copying it moves so many bytes."""
        yield Rejected("left as it is", "it is that of the last node, accepted or not")
        if self.form == "engine":
            yield Rejected("a launch of the program's", "the state lies where the engine has it")
            return
        does = "copies" if self.form == "select" else "advances"
        yield Rejected("committed by the engine", f"a launch of the program's {does} all layers at once")
        if self.form == "fold":
            why = f"a verification would write the states of all {nodes} nodes"
            yield Rejected("copied from the last accepted node", why, copied or None)
        else:
            known = "a verification leaves states, and nothing that nodes add to them"
            why = known if self.heads else "nothing says what the state is"
            yield Rejected("advanced by what accepted nodes add to it", why)


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
