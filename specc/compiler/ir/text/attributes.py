"""A declaration as the attributes of its line, and back: an attribute for each field of the dataclass but its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from specc.compiler.ir.declarations import DECLS, Decl

_PARTS = {"lifetime": ("first", "last")}
"""Fields that are several numbers, and the attributes that these are."""
_NONE = -1
"""What stands for a number that there is not."""
_WANTED = {"int | None": "int", "tuple[int, int]": "int"}
"""What an attribute has to be where its field is annotated with another type."""
_ITEMS = {"str": str, "int": int, "bool": bool, "tuple[str, ...]": str, "tuple[int, ...]": int}


def attributes(decl: Decl) -> dict[str, Any]:
    """Return what a declaration says besides its name; what is not set is left out."""
    said: dict[str, Any] = {}
    for name, parts in _parts(type(decl)).items():
        value = getattr(decl, name)
        said |= zip(parts, value if name in _PARTS else (_NONE if value is None else value,), strict=True)
    return {part: value for part, value in said.items() if value is not False}


def declaration(word: str, name: str, attrs: Mapping[str, Any]) -> Decl:
    """Return the declaration of a line.

    Raises:
        ValueError: there is none of this word with these attributes, or they have other types.

    """
    if word not in DECLS:
        raise ValueError(f"unknown declaration {word!r}")
    kind: Any = DECLS[word].record
    parts, types = _parts(kind), {field.name: str(field.type) for field in fields(kind)}
    said = {field: False for field, type_ in types.items() if type_ == "bool"} | dict(attrs)
    expected = {part for names in parts.values() for part in names}
    if set(said) != expected:
        raise ValueError(f"{word} has the fields {', '.join(sorted(expected))}")
    for field, part in ((field, part) for field, names in parts.items() for part in names):
        wanted = _WANTED.get(types[field], types[field])
        if not _fits(said[part], wanted):
            raise ValueError(f"{part} of {word} must be {wanted}")
    values = {field: tuple(said[part] for part in names) for field, names in parts.items() if field in _PARTS}
    values |= {field: said[field] for field in parts.keys() - _PARTS.keys()}
    absent = {field: None for field, value in values.items() if "None" in types[field] and value == _NONE}
    return kind(name=name, **values | absent)


def _parts(kind: Any) -> dict[str, tuple[str, ...]]:
    """Return the attributes of every field but the name."""
    names = [field.name for field in fields(kind) if field.name != "name"]
    return {name: _PARTS.get(name, (name,)) for name in names}


def _fits(value: Any, wanted: str) -> bool:
    """Return whether a value has the type that a field is annotated with."""
    items = value if isinstance(value, tuple) else (value,)
    return isinstance(value, tuple) == wanted.startswith("tuple") and all(
        type(item) is _ITEMS[wanted] for item in items
    )
