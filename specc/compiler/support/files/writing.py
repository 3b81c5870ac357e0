"""Writing files whole: whoever reads one sees all of it, or what was there before."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.files.reading import why_unreadable


@contextlib.contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to: at the end of the block it takes its place, unless the block raises.

    Folders are made as needed. Raises OSError; then nothing new is left behind, and an older file stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as folder:
        temporary = Path(folder) / path.name
        yield temporary
        os.replace(temporary, path)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file in one step, through links; what is no regular file, as /dev/stdout, is written where it is.

    OSError as `unfinished`.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with open(path, "wb", opener=_without_waiting) as stream:
            stream.write(content)
        return
    with unfinished(path) as temporary:
        temporary.write_bytes(content)


def _without_waiting(path: str, flags: int) -> int:
    """Open a file for writing; OSError for a pipe that nobody reads, for which one would wait."""
    opened = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(opened, True)
    return opened


def write_output(path: Path, content: str | bytes, *, folders: bool = False) -> None:
    """Write a file that somebody asked for, whole, text as UTF-8; ``folders``: make those on the way to it.

    Raises DiagnosticError ``emit/io`` where that fails, as for a name that no file can have.
    """
    try:
        if not folders:
            path.parent.stat()
        write_whole(path, content if isinstance(content, bytes) else content.encode())
    except (OSError, ValueError) as error:
        message = f"cannot write '{path}': {why_unreadable(error)}"
        raise DiagnosticError(Diagnostic("emit/io", message)) from error
