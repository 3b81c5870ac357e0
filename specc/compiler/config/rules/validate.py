"""Plain values -> `ConfigFile`: pydantic decides what is wrong, this module says it in the user's words.

A value that is wrong is reported, taken out, and the rest is validated again, so that later rules can still
check what stands, and one run reports everything.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from specc.compiler.config.archs import arch_hint
from specc.compiler.config.block import BLOCKS, Block, Role, StateBlock
from specc.compiler.config.presets.engine_tables import FieldBlock, TablesBlock
from specc.compiler.config.rules.written_file import Written
from specc.compiler.config.schema import OUTPUTS, ConfigFile, ShapeBlock
from specc.compiler.config.text.locations import Locations
from specc.compiler.config.text.scalars import spell
from specc.compiler.config.text.tree import Path
from specc.compiler.support.diagnostics import Diagnostic, Findings
from specc.compiler.support.suggest import closest, did_you_mean

_TYPES = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "literal_error": "a word",
}
_WORDS: Mapping[str, tuple[str, str, Callable[[str], str | None]]] = {
    "archs": ("config/unknown-arch", "GPU architecture", arch_hint),
    "outputs": ("config/unknown-output", "output", lambda word: did_you_mean(word, OUTPUTS)),
}
"""Keys whose unknown words have a code of their own: it, what the words are, and what was probably meant."""

_HOMES: Mapping[Path, type[Block]] = {
    (): ConfigFile,
    ("target",): BLOCKS["target"],
    ("draft",): BLOCKS["draft"],
    ("tables",): TablesBlock,
}
"""Blocks whose keys may have been meant elsewhere, by their paths."""


def validate(places: Locations, directory: pathlib.Path) -> Findings[Written]:
    """Return what stands in a file of a directory, with every wrong value reported and left out."""
    broken = set(places.tree.broken)
    values = _without(places.tree.values, broken)
    while True:
        try:
            return Written(ConfigFile.model_validate(values), places, frozenset(broken), directory)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                path = _written_path(details["loc"], places)
                if path in broken:
                    raise AssertionError(f"{path} was taken out and is still there") from error
                broken.add(path)
                broken |= yield from _report(details, path, places)
            values = _without(values, broken)


def _written_path(path: Path, places: Locations) -> Path:
    """Return the path of a value as it is written: one that may be a list, and is none, has no entries."""
    above = path[:-1]
    alone = isinstance(path[-1], int) and places.written(*above) and not places.written(*above, 0)
    return above if alone else path


def broken_bound(role: Role, key: str, value: object) -> str | None:
    """Return which bound of a model's key a value from elsewhere breaks, such as ``must be at most 64``; None if none.

    ``key`` is one of the block of the role.
    """
    try:
        BLOCKS[role].model_validate({key: value})
    except ValidationError as error:
        (details,) = error.errors(include_url=False)
        context: Mapping[str, Any] = details.get("ctx", {})
        return _limit(details["type"], context) or f"must be {context.get('expected', details['msg'])}"
    return None


def validate_options(kind: type[Block], written: Written) -> Findings[Block | None]:
    """Return the keys of ``options:`` as the algorithm's own block, or None after reporting what is wrong."""
    try:
        return kind.model_validate(written.file.options)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            path: Path = ("options", *details["loc"])
            yield from _report(details, path, written.places, tuple(kind.model_fields))
    return None


def _without(values: dict[str, Any], broken: set[Path]) -> dict[str, Any]:
    """Return a copy without the keys at the broken paths; an element takes its whole list along."""
    around = {path[:length] for path in broken for length in range(1, len(path) + 1)}
    return _kept(values, broken, around, ())


def _kept(values: dict[str, Any], broken: set[Path], around: set[Path], above: Path) -> dict[str, Any]:
    """Return one level of the copy; ``around`` has every path that is broken or has something broken in it."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        path = (*above, key)
        if isinstance(value, dict) and path not in broken:
            kept[key] = _kept(cast("dict[str, Any]", value), broken, around, path)
        elif path not in around:
            kept[key] = value
    return kept


def _report(
    details: ErrorDetails, path: Path, places: Locations, known: tuple[str, ...] | None = None
) -> Findings[set[Path]]:
    """Report one pydantic error under the code it has for users; ``known`` are the keys of the block, if not ours.

    Return the paths of keys that were probably meant by it, and are not written.
    """
    kind, value = details["type"], details["input"]
    context: Mapping[str, Any] = details.get("ctx", {})
    meant: set[Path] = set()
    if kind == "extra_forbidden":
        hint, meant = _key_hint(path, known)
        yield Diagnostic("config/unknown-key", f"unknown key {_quote(path[-1])}", places.key(*path), hint)
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        message = f"{spell(path)} is a block of keys, and this is {say(value)}"
        hint = "write its keys on lines of their own, indented"
        yield Diagnostic("config/not-a-mapping", message, places.value(*path), hint)
    elif kind == "missing":
        above = places.value(*path[:-1])
        yield Diagnostic("config/missing-key", f"key '{path[-1]}' is missing", above, f"add '{path[-1]}:'")
    elif kind == "bad_name":
        yield Diagnostic("config/bad-name", details["msg"], places.value(*path), name_hint(str(value)))
    elif kind == "literal_error" and isinstance(value, str):
        yield _unknown_word(path, value, str(context.get("expected", "")), places)
    elif kind in _TYPES:
        message = f"{spell(path)} takes {_TYPES[kind]}, and this is {say(value)}"
        hint = _type_hint(kind, value, context)
        yield Diagnostic("config/wrong-type", message, places.value(*path), hint)
    else:
        message = f"{spell(path)} {_limit(kind, context) or details['msg']}, and this is {say(value)}"
        if kind == "not_allowed":
            message = f"{spell(path)} {details['msg']}"
        yield Diagnostic("config/out-of-range", message, places.value(*path))
    return {key for key in meant if not places.written(*key)}


def _unknown_word(path: Path, value: str, expected: str, places: Locations) -> Diagnostic:
    """Return what is said of a word that is none of those allowed."""
    known = tuple(word.strip("' ") for word in expected.replace(" or ", ", ").split(","))
    usual = ("config/out-of-range", f"{spell(path)} value", lambda word: did_you_mean(word, known))
    code, what, hint = _WORDS.get(str(path[0]), usual)
    return Diagnostic(code, f"unknown {what} {_quote(value)}", places.value(*path), hint(value))


def _limit(kind: str, context: Mapping[str, Any]) -> str | None:
    """Return a bound in words."""
    words = {
        "greater_than_equal": ("must be at least", "ge"),
        "less_than_equal": ("must be at most", "le"),
        "too_long": ("must have at most this many entries:", "max_length"),
        "too_short": ("must have at least this many entries:", "min_length"),
        "string_too_long": ("must have at most this many characters:", "max_length"),
    }
    if kind == "string_too_short":
        return "must not be empty"
    return f"{words[kind][0]} {context[words[kind][1]]}" if kind in words else None


def say(value: object) -> str:
    """Return a value in words, short."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {_quote(value)}"
    if isinstance(value, int | float):
        return str(value) if isinstance(value, int) else f"the number {value}"
    return "a list" if isinstance(value, list) else "a block of keys"


def _quote(value: object) -> str:
    """Return a value in quotes, cut after 60 characters."""
    text = str(value)
    return f"'{text[:60]}...'" if len(text) > 60 else f"'{text}'"


def _key_hint(path: Path, known: tuple[str, ...] | None) -> tuple[str, set[Path]]:
    """Return what was probably meant, a close key here or the block that has this very key, and the paths of that."""
    key, kind = str(path[-1]), _block_of(path) if known is None else None
    here = known or tuple(kind.model_fields if kind is not None else ())
    homes = [home for home, block in _HOMES.items() if key in block.model_fields]
    if homes and kind in _HOMES.values():
        named = " or ".join(f"{block}:" for home in homes for block in home)
        return f"'{key}' belongs {f'inside {named}' if named else 'at the top level'}", {(*home, key) for home in homes}
    best = closest(key, here)
    if not here:
        return "the algorithm has no options", set()
    if best is None:
        return f"keys here: {', '.join(here)}", set()
    return f"did you mean '{best}'?", {(*path[:-1], best)}


def _block_of(path: Path) -> type[Block]:
    """Return the block in which a key stands."""
    within = {
        ("target", 3): StateBlock,
        ("shapes", 3): ShapeBlock,
        ("tables", 3): TablesBlock,
        ("tables", 4): FieldBlock,
    }
    return within[str(path[0]), len(path)] if len(path) > 2 else _HOMES[path[:-1]]


def name_hint(name: str) -> str | None:
    """Return a usable name near the one written, if there is one."""
    usable = "".join(char if char.isascii() and char.isalnum() else "_" for char in name.lower())
    usable = usable.lstrip("_0123456789")[:63]
    if not usable or usable == name:
        return "write a lower-case word such as 'my_config'"
    return f"write '{usable}'"


def _type_hint(kind: str, value: object, context: Mapping[str, Any]) -> str | None:
    """Return how the value would be written with the right type."""
    if kind == "literal_error":
        return f"write {context.get('expected')}"
    if kind.startswith("int") and isinstance(value, float) and abs(value) < 1e15:
        return f"write {int(value)}" if value.is_integer() else None
    if kind.startswith("int") and isinstance(value, str) and value.isascii() and value.isdigit():
        return f"write {value[:20]} without quotes"
    if kind == "bool_type" and isinstance(value, str) and value.lower() in ("yes", "no", "on", "off"):
        return f"YAML 1.2 spells it {'true' if value.lower() in ('yes', 'on') else 'false'}"
    if kind == "list_type" and isinstance(value, str | int) and not isinstance(value, bool):
        return f"write [{str(value)[:60]}]"
    return None
