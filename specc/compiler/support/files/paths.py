"""Paths that a user writes: `~` is a home folder, and what can be no path is refused before anybody looks there."""

from __future__ import annotations

from pathlib import Path

from specc.compiler.support.files.reading import why_unreadable


class PathError(ValueError):
    """A text is no path, or one at which nobody may look; the message says why."""


def path_of(written: str | Path, folder: Path = Path()) -> Path:
    """Return the path that a text names, from a folder; whether anything is there can then be asked.

    Raises:
        PathError: a home of nobody, as in ``~nobody``; a name that no file can have; links that lead round in a circle;
            a folder that may not be entered.

    """
    try:
        path = folder / Path(written).expanduser()
    except RuntimeError as error:
        raise PathError("nobody has that home folder") from error
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        raise PathError(why_unreadable(error)) from error
    return path
