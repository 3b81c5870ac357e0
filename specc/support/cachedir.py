"""Where, and how, specc keeps what it can make again: compiled kernels, and what transformers said about a model."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def default_directory() -> Path:
    """SPECC_CACHE_DIR, else XDG_CACHE_HOME/specc, else ~/.cache/specc. An empty variable is not set."""
    if own := os.environ.get("SPECC_CACHE_DIR"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "specc"
    return Path.home() / ".cache" / "specc"


def keep(path: Path, content: bytes) -> None:
    """Write a file in one step: a reader sees all of it or nothing. Failures are ignored, and leave nothing behind."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
