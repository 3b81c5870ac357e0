"""A map of a draft that scores a part of the tokens, as JSON lists it: what a build reads, and what a server does.

This module imports the standard library only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from .files.manifest import read_packaged
from .typed import read_json

MOST_BYTES = 1 << 28
"""Largest file of a map that is read."""
MOST_TOKENS = 1 << 24
"""Most entries of a map, as many as a vocabulary may have."""


def read_listed_tokens(path: Path) -> list[int]:
    """The tokens of a file with a JSON array of them, in its order; whoever binds a table of them checks that order.

    DamagedWheelError for what is no regular file, larger than `MOST_BYTES`, or not text; ValueError for what is no JSON
    array of whole numbers.
    """
    return tokens_of(listed(read_packaged(path.parent, path.name, MOST_BYTES)))


def listed(text: str) -> Any:
    """What a JSON array holds; nothing is parsed that has more values than a map may have. ValueError else."""
    if not text.lstrip().startswith("["):
        raise ValueError("it is no JSON array")
    if text.count(",") >= MOST_TOKENS:
        raise ValueError(f"it has more than {MOST_TOKENS} values")
    return read_json(text)


def tokens_of(tokens: object) -> list[int]:
    """The same list, if it is one of whole numbers, as many as a map may have; ValueError else."""
    numbers = cast("list[object]", tokens) if isinstance(tokens, list) else []
    valid = [token for token in numbers if type(token) is int and -MOST_TOKENS <= token <= MOST_TOKENS]
    if not 0 < len(valid) == len(numbers) <= MOST_TOKENS:
        raise ValueError(f"it is no list of whole numbers, of at most {MOST_TOKENS} tokens")
    return valid
