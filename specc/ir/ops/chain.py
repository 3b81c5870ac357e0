"""The `chain` dialect: what is left of a tree when topk is 1. Links are constants; only tokens vary."""

from __future__ import annotations

from specc.ir.opdef import OpDef

OPS = (
    OpDef(
        "chain.start",
        "bonus: i32[B], token: i64[B, K] -> tokens: i64[B, A]",
        "Column 0 is the bonus token, column 1 the first draft, the others are not set (0 in the reference).",
    ),
    OpDef(
        "chain.append",
        "tokens: i64[B, A], token: i64[B, K] -> tokens: i64[B, A]",
        "Set column ``column``.",
        {"column": int},
        inplace=True,
    ),
)
