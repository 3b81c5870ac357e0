"""Where, and how, specc keeps what it can make again: compiled kernels, and what transformers said about a model."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import platformdirs

from specc.support.writing import write_whole


def default_directory() -> Path:
    """SPECC_CACHE_DIR, else specc's folder where the system keeps caches, as XDG_CACHE_HOME or ~/.cache/specc.

    An empty variable is not set.
    """
    if own := os.environ.get("SPECC_CACHE_DIR"):
        return Path(own)
    return platformdirs.user_cache_path("specc", appauthor=False)


def keep(path: Path, content: bytes) -> None:
    """Write a file whole, see `write_whole`. Failures are ignored, and leave nothing behind."""
    with contextlib.suppress(OSError):
        write_whole(path, content)
