"""commit-states: who brings a recurrent state back to the last accepted token, the engine or a launch of the program.

A rejected token's keys and values are written again later. A state has every token mixed into it, so on a chain, too,
one of those that a verification leaves has to be committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from specc.compiler.config import LoadedConfig
from specc.compiler.config.schema import StateForm
from specc.compiler.ir.core import Module, Op
from specc.compiler.ir.ops.model import COMMIT_STATE
from specc.compiler.ir.types import TensorType
from specc.compiler.pass_manager.options import SIZE, Range
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.runtime.plan.recurrent.state_tables import KEPT_INTERVAL, KEPT_ROWS, STATE_ROWS


@dataclass(frozen=True)
class CommitStates(Pass):
    """Leave the commit to the engine, or lower it to a copy of the accepted node's state."""

    name = "commit-states"
    requires = frozenset({"typed", "compacted"})

    form: StateForm = "engine"
    layers: Annotated[int, SIZE] = 0
    """Those that keep a state."""
    size: Annotated[int, Range(0, 1 << 40)] = 0
    """Bytes of a request in one of them; 0 where that is not known."""

    @classmethod
    def of(cls, loaded: LoadedConfig) -> CommitStates:
        """As the target's ``state_form`` says."""
        target = loaded.config.target
        return cls(target.state_form, target.state_layers, target.state_bytes)

    def run(self, module: Module, ctx: Context) -> None:
        """Choose for every commit."""
        for commit in module.find(COMMIT_STATE):
            if self.form == "select":
                self._select(module, commit)
            self._tell(module, commit, ctx)

    def _select(self, module: Module, commit: Op) -> None:
        """Copy the state of the accepted node to where the engine keeps that of the request."""
        rows = TensorType("i32", ("P",))
        types = {STATE_ROWS: rows, KEPT_ROWS: rows, KEPT_INTERVAL: TensorType("i64", (1,))}
        tables = [module.add_input(name, type_) for name, type_ in types.items()]
        commit.opcode = "state.select"
        commit.attrs = {"layers": self.layers, "bytes": self.size}
        module.set_operands(commit, (*commit.operands, *tables))

    def _tell(self, module: Module, commit: Op, ctx: Context) -> None:
        moved = 2 * self.layers * self.size
        of_each = f"{moved:,} bytes are read and written for a request" if moved else "its bytes are not known"
        why = "every token is mixed into it, and a rejected one would stay there"
        left = Rejected("left as it is", "it is that of the last node, accepted or not")
        by = {
            "engine": Rejected("committed by the engine", "a launch of the program's copies all layers at once"),
            "select": Rejected("a launch of the program's", "the state lies where the engine has it"),
        }
        others = (left, *(rejected for form, rejected in by.items() if form != self.form))
        who = "by the engine" if self.form == "engine" else "by one launch"
        what = "recurrent state of the target"
        cost = moved * module.size("B") or None
        choice = Choice(what, f"committed {who}, of the last accepted node", why, others, cost, "bytes")
        self.remark(ctx, f"the {what} is {choice.chosen}, because {why}: {of_each}", commit.location, choice)
