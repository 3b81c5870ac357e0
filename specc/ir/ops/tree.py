"""The `tree` dialect: growing and linking a draft tree (EAGLE-2, arXiv 2406.16858; SGLang's build_tree)."""

from __future__ import annotations

from specc.ir.opdef import OpDef

_UNTIL = "tree-form"

OPS = (
    OpDef("tree.repeat", "x: T[B, ?w] -> x: T[B, K, ?w]", "One copy per branch."),
    OpDef(
        "tree.grow",
        "scores: f32[B, K], p: f32[B, K, K], index: i64[B, K, K]"
        " -> tokens: i64[B, K], scores: f32[B, K], kept: i64[B, K], candidates: f32[B, K, K]",
        "Path score = parent score * p; keep the best K of K*K; ``kept`` is the candidate id c, its parent c // K.",
    ),
    OpDef(
        "tree.gather",
        "x: T[B, K, *x], kept: i64[B, K] -> x: T[B, K, *x]",
        "Row kept // K of every kept candidate: what its parent's forward produced.",
    ),
    OpDef(
        "tree.select",
        "bonus: i32[B], parts*: ? -> tokens: i64[B, N], next: i64[B, N], sibling: i64[B, N], depth: i64[B, N]",
        "From S score, S token and S-1 kept operands: the N-1 best candidates in ascending id, linked to a tree.",
        {"steps": int},
    ),
    OpDef("tree.positions", "seq_lens: i64[B], depth: i64[B, N] -> positions: i64[B, N]", "seq_len + depth."),
)
