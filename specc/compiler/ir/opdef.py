"""How an op is declared: one signature line, from which types are inferred and checked.

A signature reads like its documentation::

    logits: T[B, *x, V], rows: i64[B] -> index: $dtype[B, *x], bad: i1[B, *x]

An upper-case dtype (``T``) and ``?name`` / ``*name`` axes are variables, ``$name`` takes an attribute's value, other
axes must match by name; an attribute that is ``""`` stands for no axis, and as a dtype, or as the owner of a state, for
no operand or result. ``name?:`` marks optional last operands (none of them, or the first ones) or an optional
result, ``name*:`` a variadic one; ``?`` is any type. Variadic results are listed, as a signature of their own, by the
attribute of their name.

``i64<?v>`` are numbers of entries of the axis ``?v``. Where that is a reduced vocabulary no other pattern takes them;
where it is not they are plain integers, and the pattern takes none. ``i64<$name>`` are of the axis an attribute names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from pathlib import Path
from typing import Any

from specc.compiler.ir.signature import Bindings, Slot, TypeMismatch, build, match, slots_of, there
from specc.compiler.ir.types import Dim, TensorType, Type

COUNT = range(1 << 48)
"""What may be counted: more elements than any memory has."""
PAGES = range(1, (1 << 16) + 1)
"""Tokens per page, as in a configuration."""
STEPS = range(1, 513)
"""Draft steps, or nodes that follow each other: no more than nodes are verified."""


class Trait(Enum):
    """What passes and kernels ask of an op, whatever its name."""

    REDUCES = auto()
    """It scans ``logits`` over the vocabulary, so a launch begins with it."""
    SUMS = auto()
    """What it gives depends on the order in which a launch adds over the vocabulary, or merges records of ranks."""
    LOADS = auto()
    """It reads the row of a carried field."""
    STORES = auto()
    """It replaces the row of a carried field."""
    COPIES = auto()
    """It moves whole rows as they are."""
    PICKS = auto()
    """It reads only some rows of a request: those along the accepted path, of one node, or of parents."""
    MOVES = auto()
    """It copies keys and values from slots to slots."""
    COMMITS = auto()
    """It says which of the states that a verification leaves of recurrent layers are those of requests."""
    MASKS = auto()
    """It says which columns a node attends to."""
    ADMITS = auto()
    """It gives those ``rows`` of a batch that there is room for, and 0 for others."""


def _last_axis(type_: Type | None) -> str | int:
    if not isinstance(type_, TensorType):
        raise TypeError(f"{type_} is not a tensor type")
    return type_.shape[-1]


@dataclass(frozen=True)
class OpDef:
    """The declaration of an op.

    Attributes:
        name: ``dialect.op``.
        signature: operands ``->`` results, see the module's docstring.
        doc: meaning, with units and the source of the semantics.
        attrs: attributes, and their types or the numbers that they may be.
        defaults: what those attributes are that need not be there; all others must.
        until: invariant after which the op is illegal; empty if it is legal to the end.
        effect: ``carry`` for ops that write carried state, ``external`` for the engine's forwards, ``host`` for
            its other calls, which no graph can hold, ``given`` for what the engine hands over when it runs the step,
            ``collective`` for what all ranks do together, else empty.
        inplace: whether the only result replaces the first operand in memory.
        infer: result types which a signature cannot say, from the types of carried values and the op's attributes.
        parts: the variadic operands, a signature of their own, from the op's attributes.
        indexes: by attribute the dimension that it counts along, or the operand along whose last axis it does.
        reference: of an op from outside what it computes, in torch, by the calling convention of `runtime.reference`.
        tile: of an op from outside the file that has its device function, see `kernels.writing.functions`.
        traits: what passes and kernels ask of it; none of an op from outside.
        pooled: the operand, without its number, that kernels read in the pool rows of a field that is loaded for it.

    """

    name: str
    signature: str
    doc: str
    attrs: Mapping[str, type | range] | None = None
    defaults: Mapping[str, str | int] | None = None
    until: str = ""
    effect: str = ""
    inplace: bool = False
    infer: Callable[[Mapping[str, TensorType], Mapping[str, Any]], Sequence[Type]] | None = None
    parts: Callable[[Mapping[str, Any]], str] | None = None
    indexes: Mapping[str, str | int] | None = None
    reference: Callable[..., Any] | None = None
    tile: Path | None = None
    traits: frozenset[Trait] = frozenset()
    pooled: str = ""

    @cached_property
    def operands(self) -> tuple[Slot, ...]:
        """Operand slots in order."""
        return slots_of(self.signature.partition("->")[0])

    @cached_property
    def results(self) -> tuple[Slot, ...]:
        """Result slots in order."""
        return slots_of(self.signature.partition("->")[2])

    @cached_property
    def tile_text(self) -> str:
        """The text of `tile`, read once; empty without one."""
        return self.tile.read_text(encoding="utf-8") if self.tile is not None else ""

    def misspelt(self) -> str | None:
        """What is wrong with the signature; None if all of it is read and its attributes are declared."""
        sides = self.signature.split("->")
        read = [", ".join(f"{slot.name}{slot.mark}: {slot.pattern}" for slot in slots_of(side)) for side in sides]
        if len(sides) != 2 or ["".join(side.split()) for side in sides] != ["".join(side.split()) for side in read]:
            return "is not of the form 'name: type, ... -> name: type, ...'"
        unknown = sorted(set(re.findall(r"\$(\w+)", self.signature)) - set(self.attrs or {}))
        return f"reads {', '.join(unknown)}, which is no attribute" if unknown else None

    def complete(self, attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Attributes with those that are not there."""
        return {**(self.defaults or {}), **attrs}

    def result_types(
        self, carried: Mapping[str, TensorType], operands: Sequence[Type], attrs: Mapping[str, Any]
    ) -> tuple[Type, ...]:
        """Types of all results, the optional ones included; ``carried``: of the fields of the carry.

        Raises:
            TypeMismatch: an operand does not fit.

        """
        key = tuple(operands), *attrs.items()
        if key in self._inferred:
            return self._inferred[key]
        attrs = self.complete(attrs)
        bound = self._bind(operands, attrs)
        if self.infer is not None:
            return tuple(self.infer(carried, attrs))
        return self._inferred.setdefault(key, tuple(build(slot, bound, attrs) for slot in self._all_results(attrs)))

    @cached_property
    def _inferred(self) -> dict[tuple[Any, ...], tuple[Type, ...]]:
        """Result types that follow from those of operands and from attributes: the checker asks after every pass."""
        return {}

    def bad_indexes(
        self, dims: Mapping[str, Dim], operands: Sequence[Type | None], attrs: Mapping[str, Any]
    ) -> list[str]:
        """What is wrong with the attributes of a typed op that are indexes: each must lie on its axis."""
        problems: list[str] = []
        for attr, place in (self.indexes or {}).items():
            axis = place if isinstance(place, str) else _last_axis(operands[place])
            if isinstance(axis, str) and axis not in dims:
                problems.append(f"{attr} counts along dimension {axis}, which is not declared")
                continue
            index = int(attrs[attr])
            (size,) = TensorType("i1", (axis,)).sizes(dims, unbounded=index + 1)  # the engine's business holds any
            if not 0 <= index < size:
                problems.append(f"{attr} is {index}, and axis {axis} has {size} entries")
        return problems

    def result_slots(self, count: int, attrs: Mapping[str, Any]) -> tuple[Slot, ...]:
        """The slots of an op that has ``count`` results: with the optional one, or without."""
        slots = self._all_results(attrs)
        return slots if len(slots) == count else tuple(slot for slot in slots if not slot.optional)

    @cached_property
    def _results_are_fixed(self) -> bool:
        """Whether the results are the same whatever the attributes are: none is listed, or gone for lack of a dtype."""
        return not any(slot.variadic or slot.decided_by for slot in self.results)

    def _all_results(self, attrs: Mapping[str, Any]) -> tuple[Slot, ...]:
        if self._results_are_fixed:
            return self.results
        attrs = self.complete(attrs)
        listed = [slots_of(str(attrs[slot.name])) if slot.variadic else (slot,) for slot in there(self.results, attrs)]
        return tuple(slot for slots in listed for slot in slots)

    def operand_names(self, count: int, attrs: Mapping[str, Any]) -> tuple[str, ...]:
        """Name of each of ``count`` operands; variadic ones have those of `parts`, or are numbered."""
        if self.parts is not None:
            return tuple(slot.name for slot in self._slots(attrs))
        key = count if self._operands_are_fixed else (count, self._slots(attrs))
        if key in self._named:
            return self._named[key]
        names: list[str] = []
        for slot in self._slots(attrs):
            if slot.variadic:
                names += [f"{slot.name}{i}" for i in range(count - len(names))]
            elif len(names) < count:
                names.append(slot.name)
        return self._named.setdefault(key, tuple(names))

    @cached_property
    def _named(self) -> dict[int | tuple[int, tuple[Slot, ...]], tuple[str, ...]]:
        """Names of operands by their count, and by the slots that there are where these hang on attributes."""
        return {}

    @cached_property
    def _operands_are_fixed(self) -> bool:
        """Whether there are the same operands whatever the attributes are: none hangs on one."""
        return not self._decided

    @cached_property
    def _decided(self) -> tuple[Slot, ...]:
        """Operands that an attribute may leave out; optional ones are left out by leaving them out."""
        return tuple(slot for slot in self.operands if slot.decided_by and not slot.optional)

    def _slots(self, attrs: Mapping[str, Any]) -> tuple[Slot, ...]:
        """Operand slots that there are, those of `parts` in place of the variadic one."""
        if self.parts is None:
            if self._operands_are_fixed:
                return self.operands
            gone = set(self._decided) - set(there(self._decided, self.complete(attrs)))
            return tuple(slot for slot in self.operands if slot not in gone)
        return (*(slot for slot in self.operands if not slot.variadic), *slots_of(self.parts(attrs)))

    def _bind(self, operands: Sequence[Type], attrs: Mapping[str, Any]) -> Bindings:
        slots = self._slots(attrs)
        of_signature = slots if self.parts is None else self.operands
        required = sum(not (slot.optional or slot.variadic) for slot in of_signature)
        variadic = any(slot.variadic for slot in of_signature)
        most = len(of_signature)
        if len(operands) < required or (len(operands) > most and not variadic):
            counts = f"{required} to {most}" if most > required and not variadic else str(required)
            raise TypeMismatch(-1, f"takes {counts} operands, got {len(operands)}")
        bound: Bindings = {}
        if self.parts is not None and len(slots) != len(operands):
            raise TypeMismatch(-1, f"takes {len(slots)} operands, got {len(operands)}")
        for index, (slot, type_) in enumerate(zip(slots, operands, strict=False)):
            if slot.pattern != "?":
                match(index, slot, type_, bound, attrs)
        return bound
