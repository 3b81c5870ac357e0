"""The `health` dialect: one word of bits per request that says what went wrong in a step without stopping it."""

from __future__ import annotations

from specc.compiler.ir.opdef import OpDef

DRAFT_BIT, TARGET_BIT, EXTEND_BIT, PREFILL_BIT, TREE_BIT, ROOM_BIT = range(6)
"""Bit numbers: bad logits (dialect `vocab`) of a draft forward, the target, extend, the draft's prefill; an orphan; no
room for the step."""

OPS = (
    OpDef("health.clear", "rows: i64[B] -> health: i32[B]", "No bits set."),
    OpDef(
        "health.raise",
        "health: i32[B], bad: i1[B, *x] -> health: i32[B]",
        "Set bit ``bit`` of every request with any ``bad``.",
        {"bit": range(31)},
        inplace=True,
    ),
)
