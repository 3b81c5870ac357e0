"""The `budget` dialect: which drafts of a batch are verified, where the target reads fewer rows than were drafted.

The target's rows are *packed*: those of a request follow each other, request after request, and ``[B, G]`` has room for
G of each on average. What is behind them all is padding. Design: docs/budgets.md.
"""

from __future__ import annotations

from specc.compiler.ir.opdef import OpDef

LIMIT, TAKE, CUT = "budget.limit", "budget.take", "budget.cut"
"""What an algorithm asks for, and what becomes of it."""
PACK, UNPACK, LOGITS = "budget.pack", "budget.unpack", "budget.logits"
"""Between what is by request and packed rows."""

OPS = (
    OpDef("budget.only", "index: i64[B, ?s, K] -> token: i64[B, ?s]", "The only candidate of every place."),
    OpDef(
        "budget.start",
        "p: f32[B, K] -> estimate: f32[B, S]",
        "How probable it is that a draft is accepted, of the first one; the others are not set (0 in the reference).",
    ),
    OpDef(
        "budget.append",
        "estimate: f32[B, S], p: f32[B, K, K] -> estimate: f32[B, S]",
        "Entry ``column`` is that of the draft before it times ``p``; a ``p`` that is NaN or negative counts as 0, and"
        " one above 1 as 1.",
        {"column": range(1, 513)},
        inplace=True,
        indexes={"column": 0},
    ),
    OpDef(
        "budget.product",
        "p: f32[B, S, K] -> estimate: f32[B, S]",
        "That of drafts that do not know of each other: the product of ``p`` up to each of them, as `budget.append`"
        " takes one after the other.",
    ),
    OpDef(
        LIMIT,
        "tokens: i64[B, ?n], estimate: f32[B, S], rows: i64[B] -> tokens: i64[B, ?n]",
        "The tokens, with -1 in place of drafts for which the target has no row: `budget.take` says how many it has.",
        until="budgeted",
    ),
    OpDef(
        TAKE,
        "estimate: f32[B, S], rows: i64[B] -> lens: i32[B], starts: i32[B]",
        "Of B * G rows every request has one for its root, and the most probable drafts of the batch have the others:"
        " the lower place on ties, then the lower request. ``lens`` are the rows of each request, at most S + 1, and"
        " ``starts`` the first of them; padding rows have none.",
    ),
    OpDef(
        CUT,
        "tokens: i64[B, ?n], lens: i32[B] -> tokens: i64[B, ?n]",
        "The tokens, with -1 from column ``lens`` on.",
    ),
    OpDef(
        PACK,
        "value: i64[B, A], lens: i32[B], starts: i32[B] -> packed: i64[B, G]",
        "The first ``lens`` columns of every request, from flat row ``starts`` on; 0 behind them all.",
    ),
    OpDef(
        UNPACK,
        "packed: T[B, G, ?w], lens: i32[B], starts: i32[B] -> x: T[B, A, ?w]",
        "The rows of every request from flat row ``starts`` on; 0 from column ``lens`` on.",
    ),
    OpDef(
        LOGITS,
        "logits: T[B, G, ?v], lens: i32[B], starts: i32[B] -> logits: T[B, A, ?v]",
        "The same of logits, which reductions read where they are; from column ``lens`` on the last row again.",
    ),
)
