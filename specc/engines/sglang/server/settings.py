"""Environment variables that are read when a server starts."""

from __future__ import annotations

import os


def flag(variable: str) -> bool:
    """Whether an environment variable of SGLang's is set, as SGLang reads it."""
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "y")
