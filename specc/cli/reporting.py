"""The one place where commands end: findings become text and exit codes.

Exit codes: 0 done; 1 the input is wrong; 2 wrong usage (typer's own); 3 there is no GPU to
measure; 70 specc itself failed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TextIO, TypeVar

import typer

from specc.cli.completion import unasked
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError, Note
from specc.compiler.support.render import render, render_all, to_json

if TYPE_CHECKING:
    from rich.console import Console

EXIT_INPUT = 1
EXIT_USAGE = 2
EXIT_NO_GPU = 3
EXIT_INTERNAL = 70

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Format(StrEnum):
    """How findings are printed: text for people (stderr), or one JSON list (stdout)."""

    text = "text"
    json = "json"


class Report:
    """Prints findings; knows the texts they point into."""

    def __init__(self, format: Format = Format.text) -> None:
        """Start with no sources."""
        self.format = format
        self._sources: dict[str, str] = {}
        self._paths: dict[str, str] = {}

    def know(self, sources: Mapping[str, str], paths: Mapping[str, str] | None = None) -> None:
        """Take the text, and the path to show, of files that locations may name."""
        self._sources.update(sources)
        self._paths.update(paths or {})

    def show(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Print findings: as one JSON list (even an empty one), or as text, in which a mistake stands once."""
        shown = tuple(diagnostics)
        if self.format is Format.json:
            typer.echo(json.dumps(to_json(shown, self._paths), indent=2))
            return
        color = wants_color(sys.stderr)
        for text in render_all(_mistakes(shown), self._sources, color, self._paths):
            typer.echo(text, err=True, color=color)


def _mistakes(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Findings, those as one that say of the same places that they disagree: several ops may read one size."""
    same: dict[object, list[Diagnostic]] = {}
    for diagnostic in diagnostics:
        places = (diagnostic.location, *(note.location for note in diagnostic.notes))
        same.setdefault(
            (diagnostic.code, *places) if diagnostic.code.startswith("type/") and None not in places else diagnostic, []
        ).append(diagnostic)
    return [_with_others(first, others) for first, *others in same.values()]


def _with_others(first: Diagnostic, others: Iterable[Diagnostic]) -> Diagnostic:
    """A finding, with a note of where the others found the same, as their messages begin."""
    ops = dict.fromkeys(other.message.partition(": ")[0] for other in others)
    return replace(first, notes=(*first.notes, Note(f"the same in {', '.join(ops)}"))) if ops else first


def wants_color(stream: TextIO) -> bool:
    """Whether to write colours: on a terminal, unless NO_COLOR is set to anything (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def reporting(format: Format = Format.text) -> Generator[Report]:
    """Run a command's body; turn a DiagnosticError into exit code 1 and any other failure into 70.

    Usage errors and deliberate exits pass through. A traceback is printed only with ``SPECC_DEBUG=1``.
    """
    report = Report(format)
    try:
        yield report
    except DiagnosticError as error:
        if os.environ.get("SPECC_DEBUG") == "1" and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        report.know(error.sources, error.paths)
        report.show(error.diagnostics)
        raise typer.Exit(EXIT_INPUT) from None
    except Exception as error:
        if _passes_through(error) or _unwritable(error):
            raise
        report.show([_crash(error)])
        raise typer.Exit(EXIT_INTERNAL) from None


def run(app: Callable[[], object]) -> NoReturn:
    """Run a command line to the end of the process: a stream or disk that takes no more is a finding, and exit code 1.

    Streams that are closed are opened on nothing, before a file is opened in their place.
    """
    _reopen_closed()
    code: object = 0
    try:
        if (fault := unasked()) is not None:
            typer.echo(f"Error: {fault}", err=True)
            sys.exit(EXIT_USAGE)
        app()
        sys.stdout.flush()
    except SystemExit as left:
        code = left.code
    except OSError as error:
        if not _unwritable(error):
            raise
        code = EXIT_INPUT
        with contextlib.suppress(OSError):
            where = f" '{error.filename}'" if error.filename else ""
            message = f"cannot write{where}: {error.strerror or error}"
            typer.echo(render(Diagnostic("emit/io", message), {}), err=True)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # What is left in its buffer would be tried again, with a traceback, when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            code = code or EXIT_INPUT
    sys.exit(code)  # pyright: ignore[reportArgumentType]


def _reopen_closed() -> None:
    """Open on nothing what the process was started without: stdin, stdout, stderr."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def _unwritable(error: Exception) -> bool:
    """Whether what failed is a full disk, or a stream that takes no more."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextmanager
def printing(err: bool = False) -> Generator[Console]:
    """A console for tables, whose lines go to stdout, or to stderr, without trailing blanks.

    Where it is no terminal it has COLUMNS columns, 160 if that is not set.
    """
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS", "").isdecimal() else 160
    console = Console(file=stream, width=width, highlight=False)
    with console.capture() as captured:
        yield console
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()), err=err)


def reported(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a command that does not open `reporting` itself; its signature stays as it is."""

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with reporting():
            return command(*args, **kwargs)

    return run


def _passes_through(error: Exception) -> bool:
    """Whether an exception is the command line's own: an exit, a usage error, or a closed pipe."""
    module = type(error).__module__.partition(".")[0]
    return module in ("click", "typer") or isinstance(error, BrokenPipeError)


def _crash(error: Exception) -> Diagnostic:
    """Return the finding for a failure of specc itself, after the traceback if that is wanted."""
    if os.environ.get("SPECC_DEBUG") == "1":
        traceback.print_exception(error)
    summary = (str(error).strip().splitlines() or [""])[0][:300]
    return Diagnostic(
        "internal/crash",
        f"specc failed: {type(error).__name__}: {summary}".rstrip(": "),
        hint="this is a bug in specc; please report it with the output of SPECC_DEBUG=1",
        notes=tuple(Note(note) for note in getattr(error, "__notes__", ())),
    )
