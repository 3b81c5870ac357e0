"""Liveness over the loop: which ops, optional results and carried values some output depends on.

A carried value is live iff some live op loads it, or a program of another depth does; its store is live iff it is.
State (KV) is live iff some live op, or a program of another depth, reads or writes it, and then every write to it is.
The sets grow to a fixpoint. No algorithm's name is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from specc.compiler.ir.core import Module, Op, Value, is_state
from specc.compiler.ir.declarations import KvPool
from specc.compiler.ir.nodes import is_external
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.types import FLOATS, StateType, TensorType
from specc.compiler.support.location import Location


@dataclass
class Liveness:
    """What is live.

    Attributes:
        ops: live ops.
        values: live values (states apart).
        fields: names of live carried values.
        states: types of live states.

    """

    ops: set[Op] = field(default_factory=set)
    values: set[Value] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    states: set[StateType] = field(default_factory=set)


@dataclass(frozen=True)
class Removed:
    """Something dead that `sweep` took out.

    Attributes:
        what: an op, a result, a carried value or an input, in words.
        why: what became of whoever read it, if that is more than nothing.
        location: where the configuration asked for it.
        type: of a result of a forward and of a carried value, which would lie in memory.

    """

    what: str
    why: str = ""
    location: Location | None = None
    type: TensorType | None = None

    @property
    def verdict(self) -> str:
        """``removed``, and why."""
        return f"removed; {self.why}" if self.why else "removed"


def liveness(module: Module) -> Liveness:
    """Compute the least fixpoint from the module's outputs and the carried values that are kept."""
    kept = {carry.name for carry in module.carries.values() if carry.kept}
    states = {StateType(pool.name) for pool in module.decls_of(KvPool) if pool.kept}
    live = Liveness(values=set(module.outputs.values()), fields=kept, states=states)
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
        if value in live.values or (isinstance(value.type, StateType) and value.type.settled in live.states):
            return True
    return False


def _mark(op: Op, live: Liveness) -> None:
    live.ops.add(op)
    for value in op.operands:
        if isinstance(value.type, StateType):
            live.states.add(value.type.settled)
        else:
            live.values.add(value)
    if op.has(Trait.LOADS):
        live.fields.add(str(op.attrs["field"]))


def hidden_result(op: Op) -> Value | None:
    """The optional result of a forward, its hidden states, if it has it."""
    slots = OPS[op.opcode].result_slots(len(op.results), op.attrs)
    return next((value for slot, value in zip(slots, op.results, strict=False) if slot.optional), None)


def handed_back(module: Module) -> list[tuple[Value, Value]]:
    """Hidden rows that a forward is given, and those that it hands over, the last forward first.

    A forward may overwrite the first and return their memory as the second: SGLang's EAGLE3 head adds to its rows in
    place. So whoever reads the second may read the memory of the first, and through several forwards that of the first
    of them. What is of floating point counts as hidden rows, whatever a forward from outside calls it.
    """
    return [
        (given, handed)
        for op in reversed([op for op in module.ops() if is_external(op)])
        if (handed := hidden_result(op)) is not None
        for given in op.operands
        if isinstance(given.type, TensorType) and given.type.dtype in FLOATS
    ]


_NOTHING = {"capture": "null", "width": 0}
"""What a forward says of itself that hands over no hidden states."""


def _drop_dead_results(module: Module, op: Op, live: set[Value]) -> list[Value]:
    """Remove the results that an op may lack and nothing reads: hidden states, and what else is handed over."""
    definition = OPS[op.opcode]
    slots = definition.result_slots(len(op.results), op.attrs)
    fixed = {slot.name for slot in definition.results if not slot.optional}
    dead = [v for slot, v in zip(slots, op.results, strict=True) if slot.name not in fixed and v not in live]
    for variadic in (slot.name for slot in definition.results if slot.variadic and slot.name in op.attrs):
        kept = [slot for slot, value in zip(slots, op.results, strict=True) if value not in dead]
        listed = [slot for slot in kept if slot not in definition.results]
        op.attrs[variadic] = ", ".join(f"{slot.name}: {slot.pattern}" for slot in listed)
    module.drop_results(op, [value for value in op.results if value not in dead])
    if "capture" in op.attrs and hidden_result(op) is None:
        op.attrs |= {name: nothing for name, nothing in _NOTHING.items() if name in op.attrs}
    return dead


def sweep(module: Module) -> list[Removed]:
    """Remove everything dead; return what was removed, and why.

    Dead states are short-circuited: readers of the state after a dead op read the state before it.
    """
    live = liveness(module)
    removed: list[Removed] = []
    why = {op: _why(module, op.results, live) for op in module.ops() if op not in live.ops}
    why_value = {value: _why(module, [value], live) for value in module.values() if value not in live.values}
    for op in reversed(list(module.ops())):
        if op not in live.ops:
            _bypass_state(module, op)
            removed.append(Removed(_describe(op), why[op] or _unloaded(op), op.location))
            module.erase(op)
            continue
        for value in _drop_dead_results(module, op, live.values):
            type_ = value.type if isinstance(value.type, TensorType) else None
            removed.append(Removed(f"%{value.name} of {op.opcode}", why_value[value], op.location, type_))
    for name in [name for name in module.carries if name not in live.fields]:
        gone = module.carries.pop(name)
        removed.append(Removed(f"carry @{name}", "no live op loads it", gone.location, gone.type))
    handed_out = module.outputs.values()
    for name in [n for n, v in module.inputs.items() if not module.users(v) and v not in handed_out]:
        removed.append(Removed(f"input %{name}", why_value[module.inputs[name]]))
        module.erase_input(name)
    return removed


def _why(module: Module, values: Iterable[Value], live: Liveness) -> str:
    """What becomes of the ops that read dead values; empty when there are none."""
    dead = dict.fromkeys(user for value in values for user in module.users(value) if user not in live.ops)
    readers = [brief(user) for user in dead]
    if len(readers) < 2:
        return f"its only reader, {readers[0]}, is removed too" if readers else ""
    return f"its readers, {', '.join(readers[:-1])} and {readers[-1]}, are removed too"


def _unloaded(op: Op) -> str:
    """Why a store to a carried value is dead."""
    return f"no live op loads @{op.attrs['field']}" if OPS[op.opcode].effect == "carry" else ""


def _bypass_state(module: Module, op: Op) -> None:
    states_in = [v for v in op.operands if is_state(v)]
    states_out = [v for v in op.results if is_state(v)]
    for before, after in zip(states_in if states_out else (), states_out, strict=True):
        module.replace_uses(after, before)


def brief(op: Op) -> str:
    """An op in words: its opcode, and its first result or the field it is about."""
    return _describe(op).partition(",")[0]


def _describe(op: Op) -> str:
    names = ", ".join(f"%{value.name}" for value in op.results)
    if "field" in op.attrs:
        return f"{op.opcode} @{op.attrs['field']}"
    return f"{op.opcode} {names}".rstrip()
