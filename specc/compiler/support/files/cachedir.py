"""Where, and how, specc keeps what it can make again: compiled kernels, and what transformers said about a model.

Entries are found by what they were made of, and nobody signs them: what is read must have been written by the user. So
folders are the user's own, made for nobody else to write, and those that others may write are not used.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import platformdirs

from specc.compiler.support.files.reading import read_regular
from specc.compiler.support.files.writing import unfinished

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def default_directory() -> Path:
    """SPECC_CACHE_DIR, else specc's folder where the system keeps caches, as XDG_CACHE_HOME or ~/.cache/specc.

    An empty variable is not set.
    """
    if own := os.environ.get("SPECC_CACHE_DIR"):
        return Path(own)
    return platformdirs.user_cache_path("specc", appauthor=False)


def fault(directory: Path) -> str:
    """Why nothing is kept in a directory: what makes it somebody else's, too; empty where nothing does."""
    try:
        seen = directory.stat()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return f"cannot be used: {getattr(error, 'strerror', None) or error}"
    if not stat.S_ISDIR(seen.st_mode):
        return "is no directory"
    if seen.st_uid not in (os.getuid(), 0):
        return "belongs to another user"
    return "may be written by others" if seen.st_mode & _OTHERS else ""


def kept(directory: Path, path: Path) -> bytes | None:
    """The content of a file below a directory as `keep` has left it; None without one, or where others may write."""
    try:
        if any(fault(folder) for folder in (*_below(directory, path), directory)):
            return None
        return read_regular(path)
    except (OSError, ValueError):
        return None


def keep(directory: Path, path: Path, content: bytes) -> None:
    """Write a file below a directory, whole, in folders that are the user's alone.

    Failures, and folders that others may write, are ignored, and leave nothing behind.
    """
    with contextlib.suppress(OSError, ValueError):
        for folder in (directory, *reversed(_below(directory, path))):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if fault(folder):
                return
        with unfinished(path) as temporary:
            temporary.write_bytes(content)


def _below(directory: Path, path: Path) -> list[Path]:
    """The folders from a path up to a directory, which is not among them."""
    return [parent for parent in path.parents if parent.is_relative_to(directory) and parent != directory]
