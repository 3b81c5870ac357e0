"""What may become of an input: right, a coded diagnostic, a typed error. Everything else is a failure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from specc.compiler.support.codes import CODES
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.render import render, to_json
from specc.runtime.errors import SpeccError

RIGHT = "right"
BLAMED_ON_US = ("internal/", "ir/")
"""Codes by which the compiler accuses itself: never the answer to a user's file."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
LONGEST = 1 << 20
"""Characters of findings, all together, that anyone could want to see."""


class Failure(AssertionError):
    """An outcome that is none of the three."""


def expect(condition: object, message: str) -> None:
    """Failure unless the condition holds."""
    if not condition:
        raise Failure(message)


def diagnosed(error: DiagnosticError, *, located: bool = True, ours: bool = False) -> str:
    """The outcome of a DiagnosticError whose findings have codes, places and a form that can be printed.

    located: whether every finding must point at a place; ours: whether codes of the compiler's own may be among them.
    """
    expect(error.diagnostics, "a DiagnosticError without a diagnostic")
    for diagnostic in error.diagnostics:
        _check(diagnostic, located, ours)
        _check_place(diagnostic, error)
    text = "".join(render(diagnostic, error.sources, False, error.paths) for diagnostic in error.diagnostics)
    text.encode()
    expect(len(text) <= LONGEST, f"{len(text)} characters of findings")
    expect(not CONTROL.search(text), f"a control character is printed: {CONTROL.findall(text)[:3]!r}")
    json.dumps(to_json(error.diagnostics, error.paths)).encode()
    return f"diagnostic {error.diagnostics[0].code}"


def _check(diagnostic: Diagnostic, located: bool, ours: bool) -> None:
    expect(diagnostic.code in CODES, f"the code {diagnostic.code!r} is unknown: {diagnostic.message}")
    expect(diagnostic.message.strip(), f"{diagnostic.code} says nothing")
    if not ours:
        expect(not diagnostic.code.startswith(BLAMED_ON_US), f"{diagnostic.code}: {diagnostic.message}")
    if located:
        expect(diagnostic.location is not None, f"{diagnostic.code} has no place: {diagnostic.message}")


def _check_place(diagnostic: Diagnostic, error: DiagnosticError) -> None:
    """A place lies in its file: on a line that is there, or at the end."""
    at = diagnostic.location
    if at is None or at.file not in error.sources:
        return
    text = error.sources[at.file]
    lines = max(len(re.split(r"\r\n|\r|\n", text)), len(text.splitlines()))
    expect(1 <= at.line <= lines, f"{diagnostic.code} is at line {at.line} of {lines}")
    expect(at.column >= 1, f"{diagnostic.code} is at column {at.column}")


def typed(act: Callable[[], object], *kinds: type[Exception]) -> str:
    """Run something that is right, or raises an error of the runtime's own, which says something."""
    try:
        act()
    except (SpeccError, *kinds) as error:
        expect(str(error).strip(), f"{type(error).__name__} says nothing")
        return f"typed {type(error).__name__}"
    return RIGHT
