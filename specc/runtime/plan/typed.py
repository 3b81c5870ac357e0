"""JSON held to its own rules, and values to the annotations of dataclasses. Imports the standard library only."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

LARGEST = (1 << 63) - 1


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
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return found


def listed(value: Any) -> tuple[Any, ...]:
    """A list of JSON. TypeError when it is something else that could be run through, as a text is."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list, got {value!r:.80}")
    return tuple(value)


def check_types(value: object, where: str) -> None:
    """TypeError, naming the place, unless all in a dataclass is what its annotations say; whole numbers are not < 0."""
    fault = next(_faults(value, type(value), where), None)
    if fault:
        raise TypeError(fault)


def _faults(value: Any, wanted: Any, where: str) -> Iterator[str]:
    """What is not as annotated, with its place."""
    origin, args = get_origin(wanted), get_args(wanted)
    if wanted is Any:
        return
    if origin in (Union, UnionType):
        if all(next(_faults(value, one, where), None) for one in args):
            yield f"{where} is {value!r:.80}"
    elif origin is tuple and isinstance(value, tuple) and args[-1:] == (...,):
        for index, one in enumerate(value):
            yield from _faults(one, args[0], f"{where}[{index}]")
    elif origin is tuple and isinstance(value, tuple) and len(value) == len(args):
        for index, (one, kind) in enumerate(zip(value, args, strict=True)):
            yield from _faults(one, kind, f"{where}[{index}]")
    elif origin is Mapping and isinstance(value, Mapping):
        for key, one in value.items():
            yield from _faults(key, args[0], f"a key of {where}")
            yield from _faults(one, args[1], f"{where}.{key}")
    elif origin is not None or not _is(value, wanted):
        yield f"{where} is {value!r:.80}"
    elif is_dataclass(wanted):
        for name, kind in _annotations(wanted):
            yield from _faults(getattr(value, name), kind, f"{where}.{name}")


def _is(value: Any, wanted: type) -> bool:
    if wanted is int:
        return type(value) is int and 0 <= value <= LARGEST
    return isinstance(value, wanted)


@cache
def _annotations(kind: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(kind)
    return [(field.name, hints[field.name]) for field in fields(kind)]
