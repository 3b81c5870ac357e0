"""Whether all of an engine is there that an adapter touches: tables of it, compared with what is installed.

A line of a table is a place below the engine's package: what the adapter imports, calls, overrides or hooks, in
parentheses the names that are given to it, behind a colon what is read of it, of its objects, or set on them.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from logging import Logger
from types import CodeType
from typing import Any, NamedTuple


class Touch(NamedTuple):
    """A line of a table: the place, the names that are given to it or None, and what is read of it."""

    place: str
    takes: str | None
    has: str


def touches(table: str) -> list[Touch]:
    """The lines of a table; an indented one goes on with the one before."""
    made: list[Touch] = []
    for line in filter(None, re.sub(r"\n +", " ", table).split("\n")):
        match = re.fullmatch(r"([\w.]+)(\([\w ]*\))?(?:: ([\w ]+))?", line)
        assert match is not None, line
        made.append(Touch(match[1], match[2] and match[2][1:-1], match[3] or ""))
    return made


def probe(title: str, root: str, must: str, may: Mapping[str, str], logger: Logger) -> None:
    """Look for all that is in a table. RuntimeError with everything that is missing of it.

    A place of `may` that is missing is logged with the key of its table, which says what is then left out.

    Args:
        title: the engine with its version, as people write it.
        root: the engine's package, below which places are.
        must: the table of what no program goes without.
        may: tables of what only a feature needs.
        logger: where features are told that are left out.

    """
    if missing := list(absent(root, must)):
        raise RuntimeError(f"{title}: {'; '.join(missing)}")
    for left_out, table in may.items():
        if missing := list(absent(root, table)):
            logger.warning("%s: %s: %s", title, "; ".join(missing), left_out)


def absent(root: str, table: str) -> Iterator[str]:
    """What of the lines of a table the package `root` does not have, or takes otherwise, in words."""
    for place, takes, has in touches(table):
        above, _, name = place.rpartition(".")
        try:
            owner, present = at(root, above), at(root, place)
        except (ImportError, AttributeError) as error:
            why = f" ({error})" if isinstance(error, ImportError) else ""
            yield f"{above.rpartition('.')[2] or root} has no {name}{why}"
            continue
        if takes is not None:
            short = ".".join(place.split(".")[-2:])
            method = isinstance(owner, type)
            yield from (f"{short} {what}" for what in _taken_otherwise(present, takes.split(), method=method))
        known = attributes(present)
        yield from (f"{name} has no {attribute}" for attribute in has.split() if attribute not in known)


def at(root: str, place: str) -> Any:
    """What is at a place below the package `root`. ImportError or AttributeError where there is nothing."""
    value: Any = importlib.import_module(root)
    for name in filter(None, place.split(".")):
        if not hasattr(value, name) and hasattr(value, "__path__"):
            importlib.import_module(f"{value.__name__}.{name}")
        value = getattr(value, name)
    return value


def _taken_otherwise(call: Any, given: Iterable[str], *, method: bool) -> Iterator[str]:
    """How a call with arguments of these names differs from what is taken."""
    parameters = dict(inspect.signature(call).parameters)
    if method:
        parameters.pop("self", None)
    kinds = {param.kind for param in parameters.values()}
    yield from (
        f"takes no {name}" for name in given if name not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds
    )
    for name, param in parameters.items():
        needed = param.default is param.empty and param.kind not in (param.VAR_POSITIONAL, param.VAR_KEYWORD)
        if needed and name not in given:
            yield f"needs {name}"


def attributes(owner: Any) -> set[str]:
    """What a module has; what a class or its objects have: members, fields, and all that its methods set on `self`."""
    if not isinstance(owner, type):
        return set(dir(owner))
    names: set[str] = set()
    for base in owner.__mro__:
        names.update(vars(base), vars(base).get("__annotations__", ()))
        for member in vars(base).values():
            code = getattr(inspect.unwrap(member) if callable(member) else member, "__code__", None)
            if code is not None:
                names.update(_stored_by(code))
    return names


@functools.cache
def _stored_by(code: CodeType) -> frozenset[str]:
    """The attributes that a function sets. Tables have lines of the same classes, whose methods are read once."""
    return frozenset(op.argval for op in dis.get_instructions(code) if op.opname == "STORE_ATTR")
