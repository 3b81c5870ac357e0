"""The slots of a signature: what their patterns say, which types fit them, and what types they give."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from specc.compiler.ir.types import DTYPES, StateType, TensorType, Type

Bindings = dict[str, Any]
"""Variables of a signature, and what they stand for."""


class TypeMismatch(Exception):
    """An operand's type does not fit an op's signature. ``index`` is the operand's position (-1: the count)."""

    def __init__(self, index: int, message: str, axis: int | None = None) -> None:
        super().__init__(message)
        self.index = index
        self.axis = axis


class VocabularyMismatch(TypeMismatch):
    """Numbers of one vocabulary are read as those of another."""


@dataclass(frozen=True)
class Slot:
    """One operand or result of a signature."""

    name: str
    pattern: str
    optional: bool
    variadic: bool

    @property
    def mark(self) -> str:
        """What stands after the name: ``?``, ``*`` or nothing."""
        return "?" * self.optional + "*" * self.variadic

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the pattern, as they are written."""
        return _split(self.pattern)[2]

    @property
    def is_state(self) -> bool:
        """Whether it is one of a linear value: ``!kv<target>``, ``!state<$recurrent>[?n]``."""
        return self.pattern.startswith("!")

    @property
    def owner(self) -> str:
        """Whose keys and values it is: ``target`` of ``!kv<target>``, empty of other patterns."""
        return _split(self.pattern)[1] if self.is_state else ""

    @property
    def decided_by(self) -> str:
        """The attribute that is empty where it is not there; empty if it does not hang on one."""
        dtype, of, _ = _split(self.pattern)
        word = of if self.is_state else dtype
        return word[1:] if word.startswith("$") else ""


@cache
def slots_of(text: str) -> tuple[Slot, ...]:
    """Return the slots of one side of a signature, in order."""
    matches = re.findall(r"(\w+)([?*]?): ([^,\[]+(?:\[[^\]]*\])?)", text)
    return tuple(Slot(name, pattern.strip(), mark == "?", mark == "*") for name, mark, pattern in matches)


def there(slots: Sequence[Slot], attrs: Mapping[str, Any]) -> list[Slot]:
    """The slots that no attribute leaves out."""
    return [slot for slot in slots if not slot.decided_by or attrs.get(slot.decided_by) != ""]


@cache
def _split(pattern: str) -> tuple[str, str, tuple[str, ...]]:
    """What a pattern, or the element of a type, says of dtype, numbered axis, and axes."""
    element, _, rest = pattern.partition("[")
    dtype, _, of = element.partition("<")
    entries = [entry.strip() for entry in rest.rstrip("]").split(",")]
    return dtype, of.rstrip(">"), tuple(entry for entry in entries if entry)


def match(index: int, slot: Slot, type_: Type, bound: Bindings, attrs: Mapping[str, Any]) -> None:
    """Bind the variables of an operand's pattern by its type; TypeMismatch where it does not fit."""
    if slot.is_state or isinstance(type_, StateType):
        _match_state(index, slot, type_, bound, attrs)
        return
    dtype, of, entries = _split(slot.pattern)
    want = str(attrs[dtype[1:]]) if dtype.startswith("$") else dtype
    if dtype.isupper() and dtype not in DTYPES:
        want, of, _ = _split(str(bound.setdefault(dtype, type_.element)))
    if want != type_.dtype:
        raise TypeMismatch(index, f"{slot.name} must be {want}, got {type_.dtype} in {type_}")
    _match_vocabulary(index, slot, type_, str(attrs[of[1:]]) if of.startswith("$") else of, bound)
    _match_shape(index, slot, type_, entries, bound, attrs)


def _match_state(index: int, slot: Slot, type_: Type, bound: Bindings, attrs: Mapping[str, Any]) -> None:
    if not slot.is_state or not isinstance(type_, StateType):
        raise TypeMismatch(index, f"{slot.name} must be {slot.pattern}, got {type_}")
    along = bound.setdefault(slot.axes[0], type_.along) if slot.axes and type_.along else ""
    want = _state(slot, attrs, along)
    if type_ != want or (slot.axes and not type_.along):
        wanted = f"{want}, one for each node" if slot.axes else str(want)
        raise TypeMismatch(index, f"{slot.name} must be {wanted}, got {type_}")


def _state(slot: Slot, attrs: Mapping[str, Any], along: str) -> StateType:
    """The type that a pattern is of, with one state for each entry of a dimension if it is pending."""
    kind, owner, _ = _split(slot.pattern)
    return StateType(str(attrs[owner[1:]]) if owner.startswith("$") else owner, kind[1:], along)


def _match_vocabulary(index: int, slot: Slot, type_: TensorType, of: str, bound: Bindings) -> None:
    if of.startswith("?") and not type_.of:
        raise VocabularyMismatch(index, f"{slot.name} must number a reduced vocabulary, got {type_}")
    want = bound.setdefault(of, type_.of) if of.startswith("?") else of
    if want != type_.of:
        wanted, got = (f"entries of {axis}" if axis else "the target's tokens" for axis in (want, type_.of))
        raise VocabularyMismatch(index, f"{slot.name} must number {wanted}, got {got} in {type_}")


def _match_shape(
    index: int, slot: Slot, type_: TensorType, entries: Sequence[str], bound: Bindings, attrs: Mapping[str, Any]
) -> None:
    shape = list(type_.shape)
    entries = [entry for entry in entries if not entry.startswith("$") or attrs[entry[1:]] != ""]
    for position, entry in enumerate(entries):
        if entry.startswith("*"):
            tail = len(entries) - position - 1
            rest = tuple(shape[position : len(shape) - tail])
            if bound.setdefault(entry, rest) != rest:
                raise TypeMismatch(index, f"{slot.name} is {type_}, which does not fit {slot.pattern}")
            shape[position : len(shape) - tail] = [entry]
            continue
        if position >= len(shape):
            raise TypeMismatch(index, f"{slot.name} must be {slot.pattern}, got {type_}")
        want: object = int(entry) if entry.isdecimal() else entry
        if entry.startswith("?"):
            want = bound.setdefault(entry, shape[position])
        elif entry.startswith("$"):
            want = attrs[entry[1:]]
        if shape[position] != want:
            axis = position + len(type_.shape) - len(shape)  # ``*x`` stands for any number of axes
            raise TypeMismatch(
                index, f"{slot.name} must have {want} at axis {axis}, got {shape[position]} in {type_}", axis
            )
    if len(shape) != len(entries):
        raise TypeMismatch(index, f"{slot.name} must be {slot.pattern}, got {type_}")


def build(slot: Slot, bound: Bindings, attrs: Mapping[str, Any]) -> Type:
    """Return the type of a result by what operands have bound; TypeMismatch where it has none."""
    if slot.is_state:
        return _state(slot, attrs, str(bound[slot.axes[0]]) if slot.axes else "")
    dtype, of, entries = _split(slot.pattern)
    if dtype in bound:
        dtype, of, _ = _split(str(bound[dtype]))
    dtype = str(attrs[dtype[1:]]) if dtype.startswith("$") else dtype
    if dtype not in DTYPES:
        raise TypeMismatch(-1, f"{slot.name} is made of {dtype!r}, and dtypes are {', '.join(DTYPES)}")
    shape: list[str | int] = []
    for entry in entries:
        if entry[0] in "*?" and entry not in bound:
            raise TypeMismatch(-1, f"{slot.name} is {slot.pattern}, and no operand says what {entry} is")
        if entry.startswith("*"):
            shape += bound[entry]
        elif entry.startswith("?"):
            shape.append(bound[entry])
        elif entry.startswith("$"):
            shape += [attrs[entry[1:]]] if attrs[entry[1:]] != "" else []
        else:
            shape.append(int(entry) if entry.isdecimal() else entry)
    of = str(attrs[of[1:]]) if of.startswith("$") else str(bound[of]) if of.startswith("?") else of
    return TensorType(dtype, tuple(shape), of)
