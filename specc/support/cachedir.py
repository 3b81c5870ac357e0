"""Where specc keeps what it can make again: compiled kernels, and what transformers said about a model."""

from __future__ import annotations

import os
from pathlib import Path


def default_directory() -> Path:
    """SPECC_CACHE_DIR, else XDG_CACHE_HOME/specc, else ~/.cache/specc. An empty variable is not set."""
    if own := os.environ.get("SPECC_CACHE_DIR"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "specc"
    return Path.home() / ".cache" / "specc"
