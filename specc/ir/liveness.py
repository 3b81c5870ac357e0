"""Liveness over the loop: which ops, optional results and carried values some output depends on.

A carried value is live iff some live op loads it; its store is live iff it is. State (KV) is live iff some live op
reads or writes it, and then every write to it is. The sets grow to a fixpoint. No algorithm's name is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specc.ir.core import Module, Op, Value, is_state
from specc.ir.ops import OPS
from specc.ir.types import StateType


@dataclass
class Liveness:
    """What is live.

    Attributes:
        ops: live ops.
        values: live values (states apart).
        fields: names of live carried values.
        states: owners of live state.

    """

    ops: set[Op] = field(default_factory=set)
    values: set[Value] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    states: set[str] = field(default_factory=set)


def liveness(module: Module) -> Liveness:
    """Compute the least fixpoint from the module's outputs."""
    live = Liveness(values=set(module.outputs.values()))
    size = -1
    while size != _size(live):
        size = _size(live)
        for op in reversed(list(module.ops())):
            if op in live.ops or _is_live(op, live):
                _mark(op, live)
    return live


def _size(live: Liveness) -> int:
    return len(live.ops) + len(live.values) + len(live.fields) + len(live.states)


def _is_live(op: Op, live: Liveness) -> bool:
    if OPS[op.opcode].effect == "carry":
        return op.attrs["field"] in live.fields
    for value in op.results:
        if value in live.values or (isinstance(value.type, StateType) and value.type.owner in live.states):
            return True
    return False


def _mark(op: Op, live: Liveness) -> None:
    live.ops.add(op)
    for value in op.operands:
        if isinstance(value.type, StateType):
            live.states.add(value.type.owner)
        else:
            live.values.add(value)
    if op.opcode == "carry.load":
        live.fields.add(str(op.attrs["field"]))


def hidden_result(op: Op) -> Value | None:
    """The optional last result of an op, if it has it."""
    slots = OPS[op.opcode].results
    if slots and slots[-1].optional and len(op.results) == len(slots):
        return op.results[-1]
    return None


def sweep(module: Module) -> list[str]:
    """Remove everything dead; return what was removed, in words.

    Dead states are short-circuited: readers of the state after a dead op read the state before it.
    """
    live = liveness(module)
    removed: list[str] = []
    for op in reversed(list(module.ops())):
        if op not in live.ops:
            _bypass_state(module, op)
            removed.append(_describe(op))
            module.erase(op)
            continue
        hidden = hidden_result(op)
        if hidden is not None and hidden not in live.values:
            removed.append(f"%{hidden.name} of {op.opcode}")
            module.drop_results(op, op.results[:-1])
    for name in [name for name in module.carries if name not in live.fields]:
        del module.carries[name]
        removed.append(f"carry @{name}")
    for name in [n for n, v in module.inputs.items() if not module.users(v)]:
        module.erase_input(name)
        removed.append(f"input %{name}")
    return removed


def _bypass_state(module: Module, op: Op) -> None:
    states_in = [v for v in op.operands if is_state(v)]
    for before, after in zip(states_in, [v for v in op.results if is_state(v)], strict=True):
        module.replace_uses(after, before)


def _describe(op: Op) -> str:
    names = ", ".join(f"%{value.name}" for value in op.results)
    if "field" in op.attrs:
        return f"{op.opcode} @{op.attrs['field']}"
    return f"{op.opcode} {names}".rstrip()
