"""Diagnostics: what is wrong, where, and what to write instead.

A user's mistake is never a traceback. Code that finds one builds a `Diagnostic`, usually through a
`Diagnostics` collector so that one run reports many, and leaves by `DiagnosticError`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from specc.compiler.support.codes import CODES
from specc.compiler.support.location import Location

__all__ = ["CODES", "Diagnostic", "DiagnosticError", "Diagnostics", "Findings", "Note", "Severity"]

T = TypeVar("T")

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Note:
    """A second place that explains a diagnostic: the other origin, the first definition, the bound."""

    message: str
    location: Location | None = None


@dataclass(frozen=True)
class Diagnostic:
    """One finding. ``code`` must be registered in `CODES`; an unknown one raises ValueError."""

    code: str
    message: str
    location: Location | None = None
    hint: str | None = None
    notes: tuple[Note, ...] = ()
    severity: Severity = "error"

    def __post_init__(self) -> None:
        """Refuse codes that nobody documented; raises ValueError."""
        if self.code not in CODES:
            raise ValueError(f"unknown diagnostic code {self.code!r}; register it in specc/compiler/support/codes.py")

    def __str__(self) -> str:
        """Return the finding in one line, without source text."""
        where = f"{self.location}: " if self.location else ""
        return f"{where}{self.severity}[{self.code}]: {self.message}"


Findings: TypeAlias = Generator[Diagnostic, None, T]
"""What a function finds, one after the other; its result is what it settles, None where it only checks.

Another function passes them on with ``yield from``, and `Diagnostics.collect` ends the chain.
"""


class DiagnosticError(Exception):
    """The input is wrong: carries one diagnostic or more.

    ``sources`` maps the file names used in locations to their text, ``paths`` maps them to the path that a
    reader can open; whoever raises fills in what it knows, whoever prints may add more.
    """

    def __init__(
        self,
        diagnostics: Diagnostic | Iterable[Diagnostic],
        sources: Mapping[str, str] | None = None,
        paths: Mapping[str, str] | None = None,
    ) -> None:
        """Take one diagnostic or several; raises ValueError when there is none."""
        given = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        if not given:
            raise ValueError("a DiagnosticError needs at least one diagnostic")
        super().__init__("\n".join(str(diagnostic) for diagnostic in given))
        self.diagnostics: tuple[Diagnostic, ...] = given
        self.sources: dict[str, str] = dict(sources or {})
        self.paths: dict[str, str] = dict(paths or {})


class Diagnostics:
    """Collects findings so that one run reports all of them, sorted by place when it ends."""

    def __init__(self) -> None:
        """Start empty."""
        self._found: dict[Diagnostic, None] = {}

    def add(self, diagnostic: Diagnostic) -> None:
        """Record a finding, unless exactly the same one is there already."""
        self._found.setdefault(diagnostic)

    def collect(self, findings: Findings[T]) -> T:
        """Record findings, and return what was settled."""
        while True:
            try:
                self.add(next(findings))
            except StopIteration as end:
                settled: T = end.value
                return settled

    def error(
        self,
        code: str,
        message: str,
        location: Location | None = None,
        *,
        hint: str | None = None,
        notes: Iterable[Note] = (),
    ) -> None:
        """Record an error; raises ValueError for an unregistered code."""
        self.add(Diagnostic(code, message, location, hint, tuple(notes), "error"))

    def warning(
        self,
        code: str,
        message: str,
        location: Location | None = None,
        *,
        hint: str | None = None,
        notes: Iterable[Note] = (),
    ) -> None:
        """Record a warning; raises ValueError for an unregistered code."""
        self.add(Diagnostic(code, message, location, hint, tuple(notes), "warning"))

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """The errors so far, in reading order."""
        return _in_reading_order(d for d in self._found if d.severity == "error")

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """The warnings so far, in reading order."""
        return _in_reading_order(d for d in self._found if d.severity == "warning")

    def raise_if_errors(self, sources: Mapping[str, str] | None = None, paths: Mapping[str, str] | None = None) -> None:
        """Raise DiagnosticError with the errors, then the warnings, if there is at least one error."""
        if self.errors:
            raise DiagnosticError(self.errors + self.warnings, sources, paths)


def _in_reading_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Sort by place, those without a place first; findings at one place keep their order."""
    return tuple(sorted(diagnostics, key=_place))


def _place(diagnostic: Diagnostic) -> tuple[bool, str, int, int]:
    """Return the sort key of a diagnostic."""
    at = diagnostic.location
    return (False, "", 0, 0) if at is None else (True, at.file, at.line, at.column)
