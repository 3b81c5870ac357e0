"""Options of passes as ``-p`` takes them: each is of the type, and in the range, that its field declares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from specc.compiler.pass_manager.pass_base import Pass

_ITEM = re.compile(r"(?P<name>[\w-]+)(?:\{(?P<options>[^{}]*)\})?", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,10}", re.ASCII)
_FLAGS = {"True": True, "False": False}


@dataclass(frozen=True)
class Range:
    """Which whole numbers an option takes."""

    least: int
    most: int

    def number(self, word: str) -> int:
        """The number that a word is; ValueError for one that is none, or none of these."""
        if not _NUMBER.fullmatch(word) or not self.least <= int(word) <= self.most:
            raise ValueError(f"{word!r:.60} is no number from {self.least} to {self.most}")
        return int(word)


@dataclass(frozen=True)
class OneOf:
    """Which words an option takes."""

    words: tuple[str, ...]

    def word(self, word: str) -> str:
        """The same word; ValueError for one that is none of these."""
        if word not in self.words:
            raise ValueError(f"{word!r:.60} is none of {', '.join(map(repr, self.words))}")
        return word


SIZE = Range(0, (1 << 31) - 1)
"""Whatever is counted, or measured in bytes, is in this range."""


def parse_item(text: str) -> tuple[str, str | None]:
    """The name and the options of ``name{options}``; None where a pass is named alone. ValueError for other text."""
    match = _ITEM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.80} names no pass: write name, or name{{option=value,...}}")
    return match["name"], match["options"]


def parse_options(step: type[Pass], text: str) -> Mapping[str, Any]:
    """Values by field of ``option=value,...``; ValueError for an option that the pass has not, twice, or of a value
    that the field does not take.
    """
    hints, values = get_type_hints(step, include_extras=True), dict[str, Any]()
    known = {field.name.replace("_", "-"): field.name for field in fields(step)}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        option, equals, word = pair.partition("=")
        if not equals:
            raise ValueError(f"{step.name}: {pair!r:.60} is no option=value")
        if option not in known:
            raise ValueError(f"{step.name} has no option {option!r:.60}")
        if known[option] in values:
            raise ValueError(f"{step.name}: the option {option} is there twice")
        try:
            values[known[option]] = _value(hints[known[option]], word)
        except ValueError as error:
            raise ValueError(f"{step.name}: {option}: {error}") from None
    return values


def _value(hint: Any, word: str) -> Any:
    """What a word says of an option of a type; ValueError for none."""
    if hint is bool:
        return _FLAGS[OneOf(tuple(_FLAGS)).word(word)]
    if get_origin(hint) is Literal:
        return OneOf(get_args(hint)).word(word)
    if get_origin(hint) is not Annotated:
        return word  # a list of the pass's own, which reads it when it is made
    declared = get_args(hint)[1]
    return declared.number(word) if isinstance(declared, Range) else declared.word(word)
