"""place-carry: carried fields that live in tables of the engine's, as these have them.

The key ``tables.carry`` names them. A table may have integers of another width than the program computes with, so
what is loaded from it, or stored to it, is converted. A field that the engine writes from step to step is loaded and
never stored: what the program would have stored is handed back as before, and what only the stores needed is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from string import digits
from typing import cast, get_args
from urllib.parse import quote, unquote

from specc.compiler.config import LoadedConfig
from specc.compiler.config.presets.engine_tables import FieldBlock, Integer, Writer
from specc.compiler.ir.analysis.liveness import sweep
from specc.compiler.ir.core import CarriedValue, Module, Op, entry_of
from specc.compiler.ir.infer import assign_types, insert_before, insert_behind
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.types import DTYPES
from specc.compiler.pass_manager.pass_base import Context, Pass
from specc.compiler.passes.rotate_step import DRAFTS
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.suggest import did_you_mean

INTEGERS = {"int32": "i32", "int64": "i64"}
"""What a table of the engine's may have integers as, by the names of a configuration."""


@dataclass(frozen=True)
class PlaceCarry(Pass):
    """Give fields the element types of the tables they live in, and leave those alone that the engine writes."""

    name = "place-carry"
    requires = frozenset({"typed", "live", "compacted"})
    establishes = frozenset({"live"})
    until = "kv-bound"

    places: str = ""
    """Fields as ``name:dtype:writer`` with ``+`` between them; without a dtype it is the program's own. A name is of
    all fields that have a number behind it, too."""

    def __post_init__(self) -> None:
        """Raise ValueError for what is no such list."""
        _places(self.places)

    @classmethod
    def of(cls, loaded: LoadedConfig) -> PlaceCarry:
        """As ``tables.carry``, or the engine's preset, says."""
        places = loaded.config.file.tables.carry.items()
        return cls("+".join(f"{quote(name, safe='')}:{place.dtype or ''}:{place.written_by}" for name, place in places))

    def run(self, module: Module, ctx: Context) -> None:
        """Place every field that the configuration, or its engine, says something of."""
        places = _places(self.places)
        for name, place in places.items():
            fields = [field for field in module.carries if name in (field, field.rstrip(digits))]
            for field in fields:
                self._place(module, field, place, ctx)
            if not fields and ctx.at("tables", "carry", name) is not None:
                message = f"the program carries no field '{name}'"
                at, hint = ctx.at("tables", "carry", name), did_you_mean(name, module.carries)
                raise DiagnosticError(Diagnostic("config/unknown-field", message, at, hint))
        for removed in sweep(module) if places else ():
            self.remark(ctx, f"not needed where the engine writes: {removed.what}, {removed.verdict}", removed.location)

    def _place(self, module: Module, name: str, place: FieldBlock, ctx: Context) -> None:
        """Let a field live in the engine's table."""
        carry = module.carries[name]
        dtype = _dtype(carry, place, ctx)
        if carry.given:
            message = f"a table of the engine's for @{name}, which says how a request is sampled"
            hint = "leave it out, and say it by set_sampling"
            raise DiagnosticError(Diagnostic("config/not-yet", message, ctx.at("tables", "carry", name), hint))
        _check_in_place(module, carry, dtype, place, ctx)
        if place.written_by == "engine":
            _leave_alone(module, name)
        if dtype != carry.type.dtype:
            _convert(module, carry, dtype)
        module.carries[name] = replace(carry, type=replace(carry.type, dtype=dtype), table=place.written_by)
        what = f"@{name} lives in a table {DTYPES[dtype].torch}[P, ...] of the engine's, which the {place.written_by}"
        self.remark(ctx, f"{what} writes", ctx.at("tables", "carry", name))


def _places(text: str) -> dict[str, FieldBlock]:
    """The places of fields by name; ValueError for text of another form."""
    places: dict[str, FieldBlock] = {}
    for word in filter(None, text.split("+")):
        name, dtype, writer = [*word.split(":"), "", "", ""][:3]
        if dtype not in ("", *INTEGERS) or writer not in get_args(Writer) or unquote(name) in places:
            raise ValueError(f"no place of a field, or another one: {word!r:.60}")
        places[unquote(name)] = FieldBlock(dtype=cast("Integer", dtype) or None, written_by=cast("Writer", writer))
    return places


def _dtype(carry: CarriedValue, place: FieldBlock, ctx: Context) -> str:
    """The element type that a field has in the engine's table, after refusing one that it cannot have."""
    own = carry.type.dtype
    dtype = INTEGERS[place.dtype] if place.dtype is not None else own
    at = ctx.at("tables", "carry", carry.name, "dtype") or ctx.at("tables", "carry", carry.name)
    if dtype != own and own not in INTEGERS.values():
        message = f"@{carry.name} is of {DTYPES[own].torch}, and an integer type is written"
        raise DiagnosticError(Diagnostic("legal/carry", message, at, "leave dtype out"))
    return dtype


def _check_in_place(module: Module, carry: CarriedValue, dtype: str, place: FieldBlock, ctx: Context) -> None:
    """Refuse what a field cannot be that is changed, or read, in its row: of another type, or the engine's to write."""
    others = [op for op in module.ops() if op.attrs.get("field") == carry.name and not _whole(op)]
    appended = [op for op in others if op.opcode == "carry.append"]
    if place.written_by == "engine" and appended:
        message = f"@{carry.name}, which the engine writes: drafts are looked up in it when it has grown"
        hint = "write written_by: program, which appends what the engine may write as well"
        raise DiagnosticError(Diagnostic("config/not-yet", message, ctx.at("tables", "carry", carry.name), hint))
    if dtype != carry.type.dtype and others:
        at = ctx.at("tables", "carry", carry.name, "dtype")
        message = f"@{carry.name} as {DTYPES[dtype].torch}: {others[0].opcode} works on it in its row of the table"
        hint = f"write dtype: {DTYPES[carry.type.dtype].torch}"
        raise DiagnosticError(Diagnostic("config/not-yet", message, at, hint))


def _whole(op: Op) -> bool:
    """Whether an op reads or replaces a row as a whole."""
    return op.has(Trait.LOADS) or op.has(Trait.STORES)


def _convert(module: Module, carry: CarriedValue, dtype: str) -> None:
    """Let what is loaded become what the program computes with, and what is stored what the table has."""
    module.carries[carry.name] = replace(carry, type=replace(carry.type, dtype=dtype))
    for op in [op for op in module.ops() if op.attrs.get("field") == carry.name]:
        loads = op.has(Trait.LOADS)
        given = op.result if loads else op["value"]
        wanted = carry.type.dtype if loads else dtype
        insert = insert_behind if loads else insert_before
        if loads:
            assign_types(module, op)
        convert = insert(module, op, "carry.convert", (given,), (f"{given.name}_{wanted}",), dtype=wanted)
        if loads:
            module.replace_uses(given, convert.result)
            module.set_operands(convert, (given,))
        else:
            module.replace_operand(op, given, convert.result)


def _leave_alone(module: Module, name: str) -> None:
    """Take out what stores a field; the first drafts of a request are handed back by the prefill instead."""
    for op in [op for op in module.ops() if op.attrs.get("field") == name and OPS[op.opcode].effect == "carry"]:
        if name == DRAFTS and entry_of(op.phase) == "prefill":
            module.outputs[f"prefill.{DRAFTS}"] = op["value"]
        module.erase(op)
