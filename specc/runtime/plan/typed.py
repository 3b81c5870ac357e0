"""JSON held to its own rules, and dataclasses to and from it by their annotations. Imports the standard library only.

A dataclass is an object of its fields; one that is at its default is left out. A tuple is a list. A mapping to
dataclasses that have a field `name` is a list of them, in order, and any other mapping an object. Each
dataclass of a union has the class variable `kind`, which its object has as a key. Whole numbers are not below 0, unless
they are annotated `Signed`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

LARGEST = (1 << 63) - 1
T = TypeVar("T")
Signed: TypeAlias = Annotated[int, "signed"]
"""A whole number that may be below 0."""


def read_json(text: str) -> Any:
    """The value of a JSON text. ValueError where it is none, has numbers that are none, a key twice, or is too deep."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_number, object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _number(word: str) -> float:
    if not math.isfinite(float(word)):
        raise ValueError(f"{word} is too large")
    return float(word)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError(f"key {twice(key for key, _ in pairs)!r:.80} is there twice")
    return content


def twice(values: Iterable[T]) -> T | None:
    """The first of some values that has been there before; None where all are different."""
    seen: set[T] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def to_json(value: Any) -> dict[str, Any]:
    """A dataclass as parsed JSON, which `from_json` reads again."""
    hints, kind = _annotations(type(value)), type(value)
    content = {} if "kind" in hints or not hasattr(kind, "kind") else {"kind": kind.kind}
    for field in fields(value):
        part = getattr(value, field.name)
        if field.default is MISSING or field.default != part:
            content[field.name] = _written(hints[field.name], part)
    return content


def _written(wanted: Any, value: Any) -> Any:
    if is_dataclass(value):
        return to_json(value)
    if get_origin(wanted) is tuple:
        return [_written(kind, item) for kind, item in zip(_each(get_args(wanted), len(value)), value, strict=True)]
    if get_origin(wanted) is Mapping:
        kind = get_args(wanted)[1]
        if _is_listed(kind):
            return [to_json(item) for item in value.values()]
        return {str(key): _written(kind, item) for key, item in value.items()}
    return value


def from_json(kind: type[T], data: Any, where: str) -> T:
    """A dataclass of parsed JSON. TypeError, naming the place, unless all in it is what the annotations say."""
    return _read(kind, data, where)


def _read(wanted: Any, data: Any, where: str) -> Any:
    if wanted is int:
        return _checked(type(data) is int and 0 <= data <= LARGEST, data, where)
    if wanted is Any:
        return data
    if is_dataclass(wanted):
        return _record(wanted, data, where)
    if isinstance(wanted, type):
        return _checked(isinstance(data, wanted), data, where)
    if wanted == Signed:
        return _checked(type(data) is int and -LARGEST <= data <= LARGEST, data, where)
    origin, args = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return _one_of(args, data, where)
    return _tuple(args, data, where) if origin is tuple else _mapping(args, data, where)


def _checked(right: bool, data: Any, where: str) -> Any:
    if not right:
        raise TypeError(f"{where} is {data!r:.80}")
    return data


def _one_of(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    if all(is_dataclass(kind) for kind in kinds):
        named = {kind.kind: kind for kind in kinds}
        name = data.get("kind") if isinstance(data, Mapping) else None
        _checked(isinstance(name, str) and name in named, name, f"the kind of {where}")
        return _record(named[name], {key: value for key, value in data.items() if key != "kind"}, where)
    for kind in kinds:
        try:
            return _read(kind, data, where)
        except TypeError:
            continue
    return _checked(False, data, where)


def _tuple(kinds: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    _checked(isinstance(data, list), data, where)
    kinds = _each(kinds, len(data))
    _checked(len(kinds) == len(data), data, where)
    pairs = enumerate(zip(kinds, data, strict=True))
    return tuple(_read(kind, item, f"{where}[{index}]") for index, (kind, item) in pairs)


def _mapping(kinds: tuple[Any, ...], data: Any, where: str) -> Mapping[Any, Any]:
    key_kind, kind = kinds
    if _is_listed(kind):
        return _object_of([(entry.name, entry) for entry in _tuple((kind, ...), data, where)], where)
    _checked(isinstance(data, dict), data, where)
    pairs = [(_key(key_kind, key, where), _read(kind, item, f"{where}.{key}")) for key, item in data.items()]
    return _object_of(pairs, where)


def _each(kinds: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """The kind of every element of a tuple."""
    return kinds[:1] * count if kinds[-1] is ... else kinds


def _is_listed(kind: Any) -> bool:
    return is_dataclass(kind) and "name" in _annotations(kind)


def _object_of(pairs: list[tuple[Any, Any]], where: str) -> dict[Any, Any]:
    try:
        return _object(pairs)
    except ValueError as error:
        raise TypeError(f"{where}: {error}") from error


def _key(kind: Any, key: str, where: str) -> Any:
    if kind is not int:
        return key
    digits = key.isascii() and key.isdecimal() and len(key) <= len(str(LARGEST))
    return _read(int, int(_checked(digits, key, f"a key of {where}")), f"a key of {where}")


def _record(kind: Any, data: Any, where: str) -> Any:
    _checked(isinstance(data, dict), data, where)
    hints = _annotations(kind)
    if unknown := sorted(data.keys() - hints.keys()):
        raise TypeError(f"{where} has {unknown[0]!r:.80}, which nothing reads")
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if missing := sorted(needed - data.keys()):
        raise TypeError(f"{where} has no {missing[0]!r}")
    return kind(**{name: _read(hints[name], item, f"{where}.{name}") for name, item in data.items()})


@cache
def _annotations(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}
