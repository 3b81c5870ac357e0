"""One value of a model's configuration: found under one of its names, or not there; and its numbers, which are bounded.

Numbers of a file are made by `whole_number` and `decimal_number` alone, and what follows from several of them is told
in so many digits that no arithmetic or text of it fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast


@dataclass(frozen=True)
class Fact:
    """A value and the words for where it comes from, such as ``num_key_value_heads``."""

    value: int | str
    origin: str


PARTS = ("thinker_config", "text_config", "llm_config", "language_config")
"""Keys under which files without a class of their own keep the language model's part."""


class Bare(SimpleNamespace):
    """A config.json without a class of its own: what it says, by attribute."""

    def get_text_config(self) -> object:
        """Return the language model's part; the whole where there is only that."""
        for name in PARTS:
            part = getattr(self, name, None)
            if isinstance(part, dict):
                return Bare(**cast("dict[str, Any]", part)).get_text_config()
        return self


MOST_DIGITS = 40
"""The most digits of a whole number that is read; no size that a range allows has as many."""
MOST_RATIO = 1 << 20
"""Largest ratio of two sizes that is believed."""
VARIES = "another in every layer"
"""What stands for a size that differs from layer to layer."""


class TooLargeError(ValueError):
    """A number of a file is larger than any that a model has; the message describes it."""


def whole_number(word: str) -> int:
    """Return the number that a word of JSON is. Raises TooLargeError for one of more than `MOST_DIGITS` digits."""
    if len(word) > MOST_DIGITS:
        raise TooLargeError(f"a number of {len(word)} digits")
    return int(word)


def decimal_number(word: str) -> float:
    """Return the number that a word of JSON is. Raises TooLargeError for one that no float can be."""
    number = float(word)
    if not math.isfinite(number):
        raise TooLargeError(f"the number {word[:MOST_DIGITS]}, which is too large")
    return number


def ratio(value: object) -> float | None:
    """Return a number that sizes are multiplied by: above 0, at most `MOST_RATIO`; None for anything else, as NaN."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if 0 < value <= MOST_RATIO else None


def attribute(config: object, names: Iterable[str]) -> Fact | None:
    """Return the first of the attributes that is a positive integer."""
    for name in names:
        value = value_of(config, name)
        if type(value) is int and value > 0:
            return Fact(value, name)
    return None


def value_of(config: object, name: str) -> object:
    """Return an attribute; None if there is none, `VARIES` if transformers gives it by layer only (Gemma 4)."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return VARIES


def words_of(config: object, name: str) -> list[str]:
    """Return an attribute that is a list of words; none where it is something else."""
    value = value_of(config, name)
    listed: list[object] = list(cast("Iterable[object]", value)) if isinstance(value, list | tuple) else []
    return [str(word) for word in listed] if all(isinstance(word, str) for word in listed) else []


def block_of(config: object, name: str) -> Mapping[str, Any]:
    """Return an attribute that is a block of keys; an empty one where it is something else."""
    value = value_of(config, name)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
