"""What a program knows of its target's recurrent states, and by which tables. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import PlanError
from ..nodes import OUTSIDE, OpCall
from ..plan import Plan, kv_pointers

OWNER = "target"
"""Whose states programs commit."""
STATE_ROWS, KEPT_ROWS, KEPT_INTERVAL = "state_rows", "kept_rows", "kept_interval"
"""Tables of the engine's: i32[P] the state row of each pool row, i32[P] where its state goes where its text comes to a
multiple of some tokens, and i64[1] how many these are."""
STATES = f"{OWNER}.state"
"""How the tensors of states are called among the buffers that kernels touch."""
STATE_POINTERS = kv_pointers(STATES)
"""The arena buffer i64[layers * parts, words] that says where they are."""
SELECT = "state.select"
"""The op that copies the state of a node."""
FOLD = "state.fold"
"""The op that advances what is kept by what nodes add to it."""
POINT = "state.point"
"""The op that says which of the states that a verification leaves is that of a request, and copies none: it is carried
as `STATE_POINT`, see `semantics.state_forms.snapshots`."""
TABLE_SIZES = {SELECT: (4, 8), FOLD: (2, 12)}
"""By op the most tensors that the state of a layer is in, and how many numbers say where one of them is, see
`StatePools`. A copy takes three windows and a matrix (KDA)."""


@dataclass(frozen=True)
class StateTensor:
    """A tensor of a layer's state of one request, or of what one node adds to it.

    Attributes:
        name: for people.
        dtype: one of plans.
        shape: elements along each axis; of a window at least so many along the last one.
        records: what each node adds to it, in the order in which the tensors are bound.

    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    records: tuple[StateTensor, ...] = ()


@dataclass(frozen=True)
class CommittedStates:
    """The recurrent states of the target, the engine's, which a program commits.

    Attributes:
        op: what commits them, `SELECT`, `FOLD` or `POINT`.
        layers: layers that have some.
        nodes: nodes of a request that a verification leaves something of.
        parts: the tensors of a layer; none where `bind` is told what they are.

    """

    op: str
    layers: int
    nodes: int
    parts: tuple[StateTensor, ...] = ()

    @staticmethod
    def of(plan: Plan) -> CommittedStates | None:
        """The states that a program commits; None of one that leaves that to the engine, or has none. PlanError."""
        computed = [node for node in plan.nodes("step") if not isinstance(node, OUTSIDE)]
        for call in (call for node in computed for call in node.ops if call.op in (*TABLE_SIZES, POINT)):
            try:
                parts = folded_parts(call) if call.op == FOLD else ()
                pool = CommittedStates(call.op, int(call.attrs["layers"]), plan.size("N"), parts)
            except (KeyError, TypeError, ValueError) as error:
                raise PlanError(f"{call.op} does not say what it commits: {error}") from error
            if call.op == POINT:
                return pool
            most, words = TABLE_SIZES[call.op]
            table = plan.buffers.get(STATE_POINTERS)
            if table is None or table.shape != (pool.layers * most, words):
                raise PlanError(f"{STATE_POINTERS} has no room for the states of {pool.layers} layers")
            return pool
        return None


def folded_parts(call: OpCall) -> tuple[StateTensor, ...]:
    """The tensors of a layer of `state.fold`, which has their sizes as attributes."""
    sizes, inputs = call.attrs, str(call.attrs["input"])
    heads, values, keys = (int(sizes[name]) for name in ("heads", "values", "keys"))
    records = (
        StateTensor("decay", "f32", (heads, keys) if sizes["decay"] == "channel" else (heads,)),
        StateTensor("key", str(sizes["key"]), (int(sizes["groups"]), keys)),
        StateTensor("update", "f32", (heads, values)),
    )
    channels = int(sizes["channels"])
    window = StateTensor(
        "window", inputs, (channels, int(sizes["window"])), (StateTensor("input", inputs, (channels,)),)
    )
    return StateTensor("matrix", str(sizes["matrix"]), (heads, values, keys), records), window
