"""Diagnostics as text with the source line and carets under the culprit, and as JSON.

::

    error[config/unknown-key]: unknown key 'pagesize'
     --> decode.yaml:7:1
      |
    7 | pagesize: 16
      | ^^^^^^^^
      = hint: did you mean 'page_size'?
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from specc.compiler.support.diagnostics import Diagnostic, Note
from specc.compiler.support.location import Location

_COLORS = {
    "error": "\x1b[1;31m",
    "warning": "\x1b[1;33m",
    "note": "\x1b[1;36m",
    "bold": "\x1b[1m",
    "blue": "\x1b[1;34m",
}
_RESET = "\x1b[0m"
_WORD = re.compile(r"[\w./+-]+")
_MAX_LINE = 160

MAX_SHOWN = 50
"""Most findings that are shown as text: nobody reads on, and the first are usually the cause of the rest."""


def render(
    diagnostic: Diagnostic,
    sources: Mapping[str, str],
    color: bool = False,
    paths: Mapping[str, str] | None = None,
) -> str:
    """Return the diagnostic as several lines without a final newline.

    ``sources`` maps a location's file to its text (a file that is absent gets no snippet); ``paths`` maps it
    to the path to show instead of the bare name.
    """
    return _Renderer(sources, color, paths or {}).render(diagnostic)


def render_all(
    diagnostics: Iterable[Diagnostic],
    sources: Mapping[str, str],
    color: bool = False,
    paths: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Yield the first `MAX_SHOWN` diagnostics as `render` does, then, if there are more, one line with how many."""
    renderer, findings = _Renderer(sources, color, paths or {}), list(diagnostics)
    yield from map(renderer.render, findings[:MAX_SHOWN])
    if len(findings) > MAX_SHOWN:
        yield f"{len(findings) - MAX_SHOWN} more of {len(findings)} findings are not shown"


def to_json(diagnostics: Iterable[Diagnostic], paths: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the diagnostics as JSON-ready records.

    Each has ``code``, ``severity``, ``message``, ``file``, ``line``, ``column``, ``hint`` and ``notes``; a
    note has ``message``, ``file``, ``line`` and ``column``. What is not known is null.
    """
    shown = paths or {}
    return [
        {
            "code": diagnostic.code,
            "severity": diagnostic.severity,
            "message": diagnostic.message,
            **_position(diagnostic.location, shown),
            "hint": diagnostic.hint,
            "notes": [{"message": note.message, **_position(note.location, shown)} for note in diagnostic.notes],
        }
        for diagnostic in diagnostics
    ]


def _position(location: Location | None, paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the three position fields, null when there is no place."""
    if location is None:
        return {"file": None, "line": None, "column": None}
    return {"file": paths.get(location.file, location.file), "line": location.line, "column": location.column}


class _Renderer:
    """Renders with one set of sources and one colour choice."""

    def __init__(self, sources: Mapping[str, str], color: bool, paths: Mapping[str, str]) -> None:
        self._sources = sources
        self._color = color
        self._paths = paths
        self._lines: dict[str, list[str]] = {}

    def render(self, diagnostic: Diagnostic) -> str:
        """Return headline, snippet, notes and hint, one under the other."""
        head = self._paint(f"{diagnostic.severity}[{diagnostic.code}]", diagnostic.severity)
        lines = [head + self._paint(f": {printable(diagnostic.message)}", "bold")]
        lines += self._place(diagnostic.location, diagnostic.severity)
        for note in diagnostic.notes:
            lines += self._note(note)
        if diagnostic.hint:
            bar = self._paint(f"{self._gutter(diagnostic.location)} =", "blue")
            lines.append(f"{bar} hint: {printable(diagnostic.hint)}")
        return "\n".join(lines)

    def _note(self, note: Note) -> list[str]:
        """Return a note with its own snippet."""
        head = self._paint("note", "note") + f": {printable(note.message)}"
        return [head, *self._place(note.location, "note")]

    def _place(self, location: Location | None, style: str) -> list[str]:
        """Return the arrow line and, where the text is known, the marked source line."""
        if location is None:
            return []
        pad = self._gutter(location)
        shown = printable(self._paths.get(location.file, location.file))
        lines = [f"{pad}{self._paint('-->', 'blue')} {shown}:{location.line}:{location.column}"]
        text = self._line(location)
        if text is not None:
            lines += self._snippet(location, text, style)
        return lines

    def _snippet(self, location: Location, text: str, style: str) -> list[str]:
        """Return the three lines: a bar, the source line, the carets."""
        pad = self._gutter(location)
        start = min(location.column - 1, len(text))
        length = location.length or _word_length(text, start)
        window, start = _window(text, start)
        length = max(1, min(length, len(window) - start))
        before = " " * _width(printable(window[:start]))
        carets = "^" * max(1, _width(printable(window[start : start + length])))
        bar = self._paint(f"{pad} |", "blue")
        number = self._paint(f"{location.line:>{len(pad)}} |", "blue")
        return [bar, f"{number} {printable(window)}".rstrip(), f"{bar} {before}{self._paint(carets, style)}"]

    def _line(self, location: Location) -> str | None:
        """Return the source line of a location, or None when its text is not known."""
        if location.file not in self._sources:
            return None
        if location.file not in self._lines:
            self._lines[location.file] = re.split(r"\r\n|\r|\n", self._sources[location.file])
        lines = self._lines[location.file]
        return lines[location.line - 1] if location.line <= len(lines) else None

    def _gutter(self, location: Location | None) -> str:
        """Return the blanks that line up with the line number."""
        return " " * len(str(location.line)) if location else ""

    def _paint(self, text: str, style: str) -> str:
        """Wrap the text in a colour, if colours are on."""
        return f"{_COLORS[style]}{text}{_RESET}" if self._color else text


def printable(text: str) -> str:
    """Return the text on one line, tabs as one blank and other control characters as Python escapes them.

    Nothing that a file contains can then steer a terminal, turn its text around or begin a line of its own.
    """
    return "".join(
        " " if char == "\t" else char.encode("unicode_escape").decode() if _controls(char) else char for char in text
    )


def _controls(char: str) -> bool:
    """Whether a character is not one to see: a control or format character, half of a pair, a line's end."""
    return unicodedata.category(char)[0] == "C" or unicodedata.category(char) in ("Zl", "Zp")


def _word_length(text: str, start: int) -> int:
    """Return the length of the word at ``start``, at least 1."""
    match = _WORD.match(text, start)
    return len(match.group()) if match else 1


def _window(text: str, start: int) -> tuple[str, int]:
    """Return the part of a long line around ``start``, and where ``start`` lies in it."""
    if len(text) <= _MAX_LINE:
        return text, start
    first = max(0, start - _MAX_LINE // 2)
    return text[first : first + _MAX_LINE], start - first


def _width(text: str) -> int:
    """Return how many terminal cells the text takes."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
