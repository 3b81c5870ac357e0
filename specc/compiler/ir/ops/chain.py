"""The `chain` dialect: what is left of a tree with one branch. Links are constants; only tokens vary."""

from __future__ import annotations

from specc.compiler.ir.opdef import OpDef

OPS = (
    OpDef("chain.root", "bonus: i32[B] -> tokens: i64[B, A]", "Column 0 is the bonus token, the others are 0."),
    OpDef(
        "chain.start",
        "bonus: i32[B], token: i64[B, K] -> tokens: i64[B, A]",
        "Column 0 is the bonus token, column 1 the first draft, the others are not set (0 in the reference).",
    ),
    OpDef(
        "chain.first",
        "token: i64[B, K] -> drafts: i64[B, S]",
        "Drafts of which only column 0 is set yet, the others are not (0 in the reference).",
    ),
    OpDef(
        "chain.append",
        "tokens: i64[B, ?a], token: i64[B, K] -> tokens: i64[B, ?a]",
        "Set column ``column``.",
        {"column": int},
        inplace=True,
        indexes={"column": 0},
    ),
    OpDef("chain.drafts", "tokens: i64[B, ?a] -> drafts: i64[B, S]", "What follows the bonus token."),
    OpDef(
        "chain.join",
        "bonus: i32[B], drafts: i64[B, S] -> tokens: i64[B, A]",
        "The bonus token, then the first A - 1 drafts.",
    ),
    OpDef(
        "chain.shift",
        "tokens: i64[B, A], accept_lens: i32[B], token: i64[B, K] -> tokens: i64[B, A]",
        "Entries 1 .. accept_len - 1 move down by one, ``token`` follows them; entries past accept_len stay.",
        inplace=True,
    ),
)
