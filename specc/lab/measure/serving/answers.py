"""What a server says, field by field: each is of its type and in its range, or named in an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

MOST_COUNTED = (1 << 53) - 1
"""A server counts up to here: metrics are numbers of 64 bits, in which larger ones are rounded."""
LEAST_LOG = -1e300
"""In place of the logarithm of nothing."""
SHOWN = 300
"""Characters that are shown of what a server says."""


def broken_answer(server: str, what: str) -> DiagnosticError:
    """A server does not keep to the interface."""
    hint = "its log may say more; what is asked is the OpenAI interface, streamed"
    return DiagnosticError(Diagnostic("serve/broken-answer", f"{server}: {what}", hint=hint))


@dataclass(frozen=True, slots=True)
class Field:
    """Holds a value that a server says, and its name there. Each method returns what it asks for, or raises
    DiagnosticError, which names the value.
    """

    server: str
    name: str
    value: Any

    @staticmethod
    def of_json(server: str, name: str, text: str | bytes) -> Field:
        """What a text of a server's says; it must be JSON."""
        try:
            return Field(server, name, json.loads(text))
        except (ValueError, RecursionError):
            raise broken_answer(server, f"{name} is no JSON: {text[:SHOWN]!r}") from None

    def at(self, key: str) -> Field:
        """The value of a key of an object."""
        if (field := self.get(key)) is None:
            raise broken_answer(self.server, f"{self.name} does not have {key}: {self.value!r:.{SHOWN}}")
        return field

    def get(self, key: str) -> Field | None:
        """The same, or None where it is not there, or null."""
        value = self._of(dict, "an object").get(key)
        return None if value is None else Field(self.server, f"{key} of {self.name}", value)

    def items(self, most: int = MOST_COUNTED) -> list[Field]:
        """The items of a list, of which there are at most so many."""
        listed = self._of(list, "a list")
        if len(listed) > most:
            raise broken_answer(self.server, f"{self.name} has {len(listed)} items, and at most {most} are possible")
        return [Field(self.server, f"item {place} of {self.name}", value) for place, value in enumerate(listed)]

    def entries(self) -> Mapping[str, Field]:
        """The values of an object by key."""
        return {
            key: Field(self.server, f"{key[:60]!r} of {self.name}", value)
            for key, value in self._of(dict, "an object").items()
        }

    def text(self) -> str:
        """A text."""
        return self._of(str, "a text")

    def flag(self) -> bool:
        """True or false."""
        return self._of(bool, "true or false")

    def count(self, most: int = MOST_COUNTED, least: int = 0) -> int:
        """A whole number in a range."""
        if type(self.value) is not int or not least <= self.value <= most:
            self._wrong(f"a whole number from {least} to {most}")
        return self.value

    def log_probability(self) -> float:
        """A number that may be a logarithm of a probability, as it was rounded."""
        if type(self.value) not in (int, float) or not self.value < 1:  # which NaN is not, either
            self._wrong("a log-probability")
        return float(max(self.value, LEAST_LOG))

    def _of(self, kind: type, named: str) -> Any:
        if type(self.value) is not kind:
            self._wrong(named)
        return self.value

    def _wrong(self, wanted: str) -> NoReturn:
        raise broken_answer(self.server, f"{self.name} is {self.value!r:.60}, not {wanted}")
