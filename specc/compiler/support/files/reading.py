"""Files that a user names: only regular ones are read, and nothing waits for what is none."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


MOST_BYTES = 1 << 24
"""Largest text file that is read, in bytes, where nothing else is said."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; raises OSError and ValueError as `read_regular`, and the caller closes it.

    A pipe, a device or a directory is refused before it is opened, so that no reader waits for a writer.
    """
    _require_regular(path.stat().st_mode, path)
    stream = _opened(path)
    try:
        _require_regular(os.fstat(stream.fileno()).st_mode, path)
    except OSError:
        stream.close()
        raise
    return stream


def _opened(path: Path) -> BinaryIO:
    """Open a file without waiting for anybody."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def read_regular(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file, see `open_regular`, of at most ``most`` bytes.

    Raises:
        OSError: the file cannot be read; ``strerror`` says why, also for what is no regular file or too large.
        ValueError: the path cannot be one, as with a NUL in it.

    """
    with open_regular(path) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise OSError(None, f"it is larger than {most} bytes", str(path))
    return content


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Return the UTF-8 text of a regular file of at most ``most`` bytes, with line feeds as line ends.

    Raises:
        OSError: as `read_regular`.
        ValueError: as `read_regular`, and for what is not UTF-8.

    """
    return read_regular(path, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def half_character(text: str) -> int | None:
    """Where a text has half of a character above U+FFFF, which no encoding takes; None where all of it is whole."""
    return next((place for place, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)


def why_unreadable(error: OSError | ValueError) -> str:
    """What `read_regular` or `read_text` has raised, without the number and path that an OSError adds."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _require_regular(mode: int, path: Path) -> None:
    """Raise OSError unless a mode is that of a regular file."""
    if not stat.S_ISREG(mode):
        raise OSError(None, f"it is {_KINDS.get(stat.S_IFMT(mode), 'a special file')}, not a regular file", str(path))
