"""The rows of a budget, as a configuration writes them: a number, `all`, or `given`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticKnownError

LEAST, MOST = 2, 64
"""Fewest and most rows of a request, on average."""
ALL = "all"
"""What stands for a row for every draft."""
GIVEN = "given"
"""What stands for as many rows of each request as the engine says, which runs the target."""


def _rows(value: object) -> int | str:
    """Return a budget; for anything else pydantic's error of a number that is none, or out of range."""
    if value in (ALL, GIVEN):
        return str(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise PydanticKnownError("int_type")
    if value < LEAST:
        raise PydanticKnownError("greater_than_equal", {"ge": LEAST})
    if value > MOST:
        raise PydanticKnownError("less_than_equal", {"le": MOST})
    return value


def _listed(value: object) -> object:
    """One budget is a list of one."""
    return value if isinstance(value, list) else [value]


_NUMBER = {"type": "integer", "minimum": LEAST, "maximum": MOST}
_ENTRY = {"anyOf": [_NUMBER, {"enum": [ALL, GIVEN]}]}
_LIST = {"type": "array", "items": _ENTRY, "minItems": 1, "maxItems": 16}

Rows = Annotated[int | Literal["all", "given"], PlainValidator(_rows), WithJsonSchema(_ENTRY)]
Budgets = Annotated[
    list[Rows],
    BeforeValidator(_listed),
    Field(min_length=1, max_length=16),
    WithJsonSchema({"anyOf": [_NUMBER, {"enum": [GIVEN]}, _LIST]}),
]
"""The key `budget`, and its entries."""
