"""Environment variables that are read when a server starts."""

from __future__ import annotations

import os
from collections.abc import Collection


class ServerError(RuntimeError):
    """The server was told something that it cannot do: it ends, whether or not a program must run."""


def word(variable: str, words: Collection[str], default: str) -> str:
    """The value of an environment variable. ServerError unless it is one of `words`."""
    value = os.environ.get(variable, default)
    if value not in words:
        raise ServerError(f"{variable} is one of {', '.join(words)}, got {value!r}")
    return value


def flag(variable: str) -> bool:
    """Whether an environment variable of SGLang's is set, as SGLang reads it."""
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "y")
