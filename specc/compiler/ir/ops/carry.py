"""The `carry` and `relay` dialects: what a request carries from step to step.

Every field is stored in a pool buffer of P rows, one per request pool row, so that the scheduler can build the next
step before this one's results reach the host (SGLang's FutureMap). Row 0 is the padding row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.compiler.ir.opdef import OpDef, Trait
from specc.compiler.ir.signature import TypeMismatch
from specc.compiler.ir.types import TensorType, Type


def _field_type(carried: Mapping[str, TensorType], attrs: Mapping[str, Any]) -> Sequence[Type]:
    if attrs["field"] not in carried:
        raise TypeMismatch(-1, f"nothing named {attrs['field']} is carried")
    return [carried[attrs["field"]]]


LOAD, STORE = "carry.load", "carry.store"
"""What reads the row of a field, and what replaces it."""
_STORE = "rows: i64[B], value: T[B, *x] ->"

OPS = (
    OpDef(
        LOAD,
        "rows: i64[B] -> value: ?",
        "The request's carried value; padding rows: 0.",
        {"field": str},
        infer=_field_type,
        traits=frozenset({Trait.LOADS, Trait.COPIES}),
    ),
    OpDef(
        STORE,
        _STORE,
        "Carry ``value``; padding rows store nothing.",
        {"field": str},
        effect="carry",
        traits=frozenset({Trait.STORES, Trait.COPIES}),
    ),
    OpDef(
        "carry.append",
        "rows: i64[B], seq_lens: i64[B], values: T[B, A], count: i32[B] ->",
        "The field is a ring T[B, L] in which entry q % L belongs to position q: ``values[b, i]`` is carried for"
        " position seq_len + 1 + i, for i < count; padding rows store nothing.",
        {"field": str},
        effect="carry",
    ),
    OpDef(
        "carry.count",
        "rows: i64[B], values: i32[B, $axis], count?: i32[B] ->",
        "The field counts tokens, i32[B, V]: 2 more in the words of the first ``count`` of ``values``, by default of"
        " all; bit 0 of a word says whether the token is in the prompt. Padding rows count nothing.",
        {"field": str, "axis": str},
        effect="carry",
    ),
    OpDef(
        "carry.convert",
        "x: T[B, *x] -> value: $dtype[B, *x]",
        "Integers as a field of another width has them, or as they were: ``dtype`` is i32 or i64, and what it does not"
        " hold is cut off.",
        {"dtype": str},
    ),
    OpDef(
        "relay.publish",
        _STORE,
        "A carry.store the scheduler waits for: after verify, before extend.",
        {"field": str},
        effect="carry",
        traits=frozenset({Trait.STORES, Trait.COPIES}),
    ),
)
