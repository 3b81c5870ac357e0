"""Where, and how, specc keeps what it can make again: compiled kernels, and what transformers said about a model."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from specc.support.writing import write_whole


def default_directory() -> Path:
    """SPECC_CACHE_DIR, else XDG_CACHE_HOME/specc, else ~/.cache/specc. An empty variable is not set."""
    if own := os.environ.get("SPECC_CACHE_DIR"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "specc"
    return Path.home() / ".cache" / "specc"


def keep(path: Path, content: bytes) -> None:
    """Write a file whole, see `write_whole`. Failures are ignored, and leave nothing behind."""
    with contextlib.suppress(OSError):
        write_whole(path, content)
