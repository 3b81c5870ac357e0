"""Module -> text. ``parse(print_module(m))`` is ``m`` again; see docs/ir.md for the form."""

from __future__ import annotations

import json

from specc.compiler.ir.core import Attr, CarriedValue, Module, Op, entry_of
from specc.compiler.ir.declarations import RECORDS, Decl
from specc.compiler.ir.text.attributes import attributes
from specc.compiler.ir.types import Dim
from specc.compiler.support.location import Location


def print_module(module: Module, *, locations: bool = True) -> str:
    """The module as ``.specir`` text, ending with a newline.

    Args:
        module: any module, before or after any pass.
        locations: whether ops carry ``loc(...)``.

    """
    lines = [f"module @{module.name} {{"]
    if module.established:
        lines.append(f"  established {', '.join(sorted(module.established))}")
    lines += [f"  {_dim(dim)}" for dim in module.dims.values()]
    lines += [f"  input %{value.name} : {value.type}" for value in module.inputs.values()]
    lines += [
        f"  carry @{carry.name} : {carry.type}{_marks(carry)}{_loc(carry.location, locations)}"
        for carry in module.carries.values()
    ]
    for phase, ops in module.phases.items():
        if ops:
            lines.append(f"  phase {phase} {{" + ("  // an entry of its own" if entry_of(phase) == phase else ""))
            lines += [f"    {print_op(op, locations=locations)}" for op in ops]
            lines.append("  }")
    lines += [f"  output {name} = %{value.name}" for name, value in module.outputs.items()]
    lines += [f"  {_decl(decl)}" for decl in module.decls]
    return "\n".join([*lines, "}"]) + "\n"


def print_op(op: Op, *, locations: bool = True) -> str:
    """One op on one line."""
    results = ", ".join(f"%{value.name}" for value in op.results)
    operands = ", ".join(f"%{value.name}" for value in op.operands)
    types = ", ".join("?" if value.type is None else str(value.type) for value in op.results)
    text = f"{results} = " if results else ""
    text += f"{op.opcode}({operands})"
    if op.attrs:
        text += f" {_attrs(op.attrs)}"
    if types:
        text += f" : {types}"
    return text + _loc(op.location, locations)


def _dim(dim: Dim) -> str:
    if dim.size is None:
        return f"dim {dim.name} : {dim.axis}"
    return f"dim {dim.name} : {dim.axis} {'<=' if dim.dynamic else '='} {dim.size}"


def _marks(carry: CarriedValue) -> str:
    limit = "" if carry.limit is None else f" limit {carry.limit}"
    table = f" table {carry.table}" if carry.table else ""
    return f"{limit}{' given' * carry.given}{' kept' * carry.kept}{table}"


def _decl(decl: Decl) -> str:
    return f"{RECORDS[type(decl)]} @{decl.name} {_attrs(attributes(decl))}"


def _attrs(attrs: dict[str, Attr]) -> str:
    return "{" + ", ".join(f"{key} = {_attr(value)}" for key, value in sorted(attrs.items())) + "}"


def _attr(value: Attr) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _loc(location: Location | None, wanted: bool) -> str:
    if location is None or not wanted:
        return ""
    return f" loc({json.dumps(location.file)}:{location.line}:{location.column})"
