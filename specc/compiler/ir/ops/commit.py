"""The `commit` dialect: from an accepted path to the state of the next step."""

from __future__ import annotations

from specc.compiler.ir.opdef import OpDef, Trait

OPS = (
    OpDef(
        "commit.path",
        "x: T[B, ?n, *x], accept_index: i32[B, A] -> x: T[B, A, *x]",
        "The value along the accepted path; 0 past accept_len.",
        until="compacted",
        traits=frozenset({Trait.PICKS}),
    ),
    OpDef(
        "commit.compact",
        "x: T[B, N, *x], accept_index: i32[B, A] -> x: T[B, A, *x]",
        "``commit.path`` of a tree: row i is that of accepted node i.",
        traits=frozenset({Trait.PICKS}),
    ),
    OpDef(
        "commit.last",
        "x: T[B, ?n, *x], accept_index: i32[B, A], accept_lens: i32[B] -> x: T[B, *x]",
        "The row of the last accepted node; padding rows: 0.",
        traits=frozenset({Trait.PICKS}),
    ),
    OpDef(
        "commit.lengths",
        "seq_lens: i64[B], accept_lens: i32[B], predict: i32[B, A] -> new_seq_lens: i64[B], bonus: i32[B]",
        "seq_len + accept_len, and the last emitted token; padding rows: 0, 0.",
    ),
    OpDef(
        "commit.extend_ids",
        "predict: i32[B, A], accept_lens: i32[B] -> ids: i64[B, A]",
        "Token of extend row i: the one after accepted node i; 0 past accept_len.",
    ),
    OpDef(
        "commit.select",
        "accept_lens: i32[B] -> select: i64[B]",
        "Flat extend row that gives the next step's carry: b * A + max(accept_len - 1, 0).",
    ),
)
