"""What callbacks are given and return is written once, for those who implement them: as ops declare it and plans call.

An argument more is one more of the op and of the record, and a word of docs/runtime.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NotRequired, get_args, get_origin, get_type_hints

import pytest
from test_algorithm_table import SHAPES, TABLE, TREE

from specc.compiler.driver.build import build_program
from specc.compiler.ir.nodes import callback_of
from specc.compiler.ir.opdef import OpDef, Slot
from specc.compiler.ir.ops import OPS
from specc.runtime.entry import callbacks
from specc.runtime.entry.external import STEP_AXIS

Arguments = dict[str, tuple[str, bool]]
DECLARED = {callback_of(opcode): op for opcode, op in OPS.items() if op.effect in ("external", "host")}
"""The op that calls each callback."""
SPELLED = ((r"\$\w*dtype\b", "T"), (r"\$point\b", "i32"), (r"\$\w*width\b", "W"), (r"\?n\b", "N"))
"""What records write for dtypes and widths of attributes, and for the variable axis of nodes."""
SAID = {"step": "int", "capture": "str"}
"""The attributes that a call is told."""
SIZES = ("B", "K", "A", "G", "S", "T")
"""Axes that no plan calls otherwise; those of nodes are A, too, where nodes are a chain."""
TABLE_ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| .*\|$", re.MULTILINE)
PAGE = Path(__file__).parents[4] / "docs" / "runtime.md"


def record_of(callback: str) -> Any:
    """That of ``extend_module`` is ``ExtendModuleCall``."""
    return getattr(callbacks, "".join(map(str.capitalize, callback.split("_"))) + "Call")


def written(record: Any) -> Arguments:
    """By name the type of an argument, and whether a call may be without it."""
    arguments = Arguments()
    for name, hint in get_type_hints(record, include_extras=True).items():
        optional = get_origin(hint) is NotRequired
        type_ = get_args(hint)[0] if optional else hint
        arguments[name] = (type_.__metadata__[0] if hasattr(type_, "__metadata__") else type_.__name__, optional)
    return arguments


def spelled(op: OpDef, slot: Slot) -> str:
    """The type of a slot as the engine sees it: of an axis that its step counts along it has one entry."""
    pattern = slot.pattern
    for axis in (op.indexes or {}).values():
        pattern = pattern.replace(f"[{axis}, ", "[")
    for of_op, letter in SPELLED:
        pattern = re.sub(of_op, letter, pattern)
    return pattern


def declared(op: OpDef) -> Arguments:
    """The same as `written` of an op."""
    without = {name for name, value in (op.defaults or {}).items() if value == ""}
    tensors = {
        slot.name: (spelled(op, slot), slot.optional or slot.decided_by in without)
        for slot in op.operands
        if not slot.owner
    }
    return tensors | {name: (SAID[name], False) for name in SAID if name in (op.attrs or {})}


def test_there_is_a_record_for_every_callback_and_no_other() -> None:
    records = {name for name in vars(callbacks) if name.endswith("Call")}
    assert records == {record_of(callback).__name__ for callback in DECLARED}


@pytest.mark.parametrize("callback", DECLARED)
def test_a_record_is_as_its_op(callback: str) -> None:
    op, record = DECLARED[callback], record_of(callback)
    assert written(record) == declared(op)
    slots = [slot for slot in op.results if not slot.owner and not slot.variadic]
    results = [f"{slot.name}{slot.mark}: {spelled(op, slot)}" for slot in slots]
    assert record.__doc__.rpartition(" -> ")[2] == f"{', '.join(results) or 'nothing'}."


def test_the_page_names_all_arguments() -> None:
    """Docs/runtime.md has a row for every callback."""
    section = PAGE.read_text().partition("\n## Callbacks\n")[2].partition("\n## ")[0]
    rows = {callback: {*re.findall(r"`(\w+)`", arguments)} for callback, arguments in TABLE_ROW.findall(section)}
    assert rows == {callback: {*declared(op)} for callback, op in DECLARED.items()}


@pytest.mark.parametrize(("algorithm", "shape"), SHAPES)
def test_a_plan_calls_with_what_records_have(algorithm: str, shape: str) -> None:
    """Of every algorithm: no argument that a record lacks, all that it has to have, and each with its axes."""
    plan = build_program(TABLE[algorithm].load(algorithm, **(TREE if shape == "tree" else {}))).plan
    for node in plan.externals():
        record = written(record_of(node.callback))
        given = {*node.operands} | {name for name in SAID if getattr(node, name) is not None}
        assert {name for name, (_, optional) in record.items() if not optional} <= given <= record.keys(), node.name
        for name, value in node.operands.items():
            type_ = plan.values[value] if value in plan.values else plan.inputs[value]
            dtype, _, written_axes = record[name][0].rstrip("]").partition("[")
            axes = type_.axes[1:] if node.step is not None and type_.axes[0] == STEP_AXIS else type_.axes
            assert dtype in (type_.dtype, "T", "?"), (node.name, name)
            known = [
                (wanted, axis) for wanted, axis in zip(written_axes.split(", "), axes, strict=False) if wanted in SIZES
            ]
            assert all(wanted == axis for wanted, axis in known), (node.name, name)
            assert "*x" in written_axes or dtype == "?" or len(axes) == written_axes.count(",") + 1, (node.name, name)
