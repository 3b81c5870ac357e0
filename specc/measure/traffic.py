"""Bytes that a launch cannot do without, read off a plan: every value once, and of a value only the rows that it needs.

What depends on the drafts, keys and values that are moved, is counted from a step that has run, or at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from math import prod

from specc.ir.ops import OPS
from specc.ir.types import DTYPES
from specc.runtime.plan.nodes import OpCall
from specc.runtime.plan.plan import BATCH_AXIS, KvPool, Plan

MOVES = {"kv.move": "target", "kv.duplicate_tail": "draft"}
"""Ops that copy keys and values, and whose."""
_CHOOSING = {"commit.compact": "x", "commit.last": "x", "vocab.row": "logits"}
"""Ops that read some of a request's rows, and of which operand."""


def launch_bytes(plan: Plan, calls: Iterable[OpCall], rows: int, moved: int | None = None) -> int:
    """Bytes that the ops of a launch read and write for so many requests.

    ``moved``: tokens whose keys and values it copies; by default the most that it may.
    """
    calls = list(calls)
    made = {name for call in calls for name in call.results}
    needed: dict[str, int] = {}
    for call in calls:
        for name, size in _read(plan, call, rows).items():
            if name not in made:
                needed[name] = max(needed.get(name, 0), size)
    written = sum(_nbytes(plan, name, rows) for name in made if name in plan.values)
    carried = sum(_carried(plan, call, rows) for call in calls)
    return sum(needed.values()) + written + carried + sum(_moved(plan, call, rows, moved) for call in calls)


def most_moved(plan: Plan, call: OpCall, rows: int) -> int:
    """Tokens whose keys and values an op copies at most."""
    return rows * (plan.size("A") - 1 if call.op == "kv.move" else int(call.attrs["page"]) - 1)


def _read(plan: Plan, call: OpCall, rows: int) -> dict[str, int]:
    """Bytes by operand; of a reduction those of the rows that it says it reads."""
    sizes = {name: _nbytes(plan, name, rows) for name in call.operands}
    chosen = named(call).get(_CHOOSING.get(call.op, "logits"), "")
    usual = 1 if call.op in _CHOOSING else None
    wanted = plan.size("A") if call.op == "commit.compact" else call.attrs.get("most", usual)
    held = _axes(plan, chosen)[1:-1]
    if wanted is not None and held:
        sizes[chosen] = sizes[chosen] * int(wanted) // max(int(wanted), prod(map(plan.size, held)))
        if call.op == "sample.residual":  # as many rows of the draft's, of any of its forwards
            drafts = [name for name in call.operands if name != chosen and _is_row(plan, name)]
            sizes |= {name: min(sizes[name], sizes[chosen] // len(drafts)) for name in drafts}
    return sizes


def named(call: OpCall) -> dict[str, str]:
    """The values of an op by the names of its signature, up to the first that may be missing, or be several."""
    definition = OPS.get(call.op)
    slots = () if definition is None else tuple(takewhile(lambda slot: not slot.mark, definition.operands))
    return {slot.name: value for slot, value in zip(slots, call.operands, strict=False)}


def _is_row(plan: Plan, name: str) -> bool:
    """Whether a value has an entry for every token."""
    axes = _axes(plan, name)
    return bool(axes) and axes[-1] in ("V", "Vd")


def _axes(plan: Plan, name: str) -> tuple[str, ...]:
    field = plan.values.get(name) or plan.inputs.get(name)
    return field.axes if field is not None else ()


def _nbytes(plan: Plan, name: str, rows: int) -> int:
    """Bytes of a value for so many requests; 0 of what is looked up in, or has a size that the engine decides.

    Of what is there for every row of the pool, those of the requests.
    """
    field = plan.values.get(name) or plan.inputs.get(name)
    if field is None or getattr(field, "limit", ""):
        return 0
    sizes = dict(plan.dims) | dict.fromkeys((BATCH_AXIS, "P"), rows)
    if not all(axis.isdecimal() or axis in sizes for axis in field.axes):
        return 0
    return DTYPES[field.dtype].bytes * prod(sizes.get(axis) or plan.size(axis) for axis in field.axes)


def _carried(plan: Plan, call: OpCall, rows: int) -> int:
    """Bytes of the pool rows that an op reads or writes; of those that it appends to, what it appends."""
    field = plan.carry.get(str(call.attrs.get("field", "")))
    if field is None:
        return 0
    if call.op in ("carry.append", "carry.count"):
        return DTYPES[field.dtype].bytes * rows * plan.size("A")
    return DTYPES[field.dtype].bytes * rows * prod(plan.size(axis) for axis in field.axes[1:])


def _moved(plan: Plan, call: OpCall, rows: int, moved: int | None) -> int:
    """Bytes of keys and values that an op reads once and writes once, or for every other branch."""
    if call.op not in MOVES:
        return 0
    pool: KvPool = plan.kv_pools[MOVES[call.op]]
    tokens = most_moved(plan, call, rows) if moved is None else moved
    copies = 1 if call.op == "kv.move" else plan.size("K") - 1
    return (1 + copies) * tokens * pool.layers * pool.buffers * pool.row_bytes
