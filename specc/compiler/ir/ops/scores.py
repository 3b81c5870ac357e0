"""The ops of the `vocab` dialect that score tokens."""

from __future__ import annotations

from specc.compiler.ir.opdef import OpDef, Trait

MOST_BEST = 32
"""Most of the most probable tokens that are handed out of a row."""

OPS = (
    OpDef(
        "vocab.logprob",
        "logits: T[B, *x, ?v], rows: i64[B], index: i32[B, *x] -> logprob: f32[B, *x]",
        "Log of the softmax, in f32 over the whole vocabulary, at one index per row; padding rows: 0.",
        traits=frozenset({Trait.SUMS}),
    ),
    OpDef(
        "vocab.logprob_path",
        "logits: T[B, ?n, ?v], rows: i64[B], index: i32[B, ?a], path: i32[B, ?a] -> logprob: f32[B, ?a]",
        "``vocab.logprob`` along the accepted path: of entry i that of row ``path[i]`` of the batch at ``index[i]``; 0"
        " where ``path`` is negative. No other row is read.",
        traits=frozenset({Trait.SUMS, Trait.PICKS}),
    ),
    OpDef(
        "vocab.best",
        "logits: T[B, *x, ?v], rows: i64[B] -> tokens: i32[B, *x, $count], logprobs: f32[B, *x, $count]",
        "The ``count`` most probable tokens of every row, lowest index first on ties, and the logs of their"
        " probabilities, as `vocab.logprob` has them; padding rows: 0.",
        {"count": range(1, MOST_BEST + 1)},
        traits=frozenset({Trait.SUMS}),
    ),
    OpDef(
        "vocab.best_path",
        "logits: T[B, ?n, ?v], rows: i64[B], path: i32[B, ?a] -> tokens: i32[B, ?a, $count],"
        " logprobs: f32[B, ?a, $count]",
        "``vocab.best`` along the accepted path, as `vocab.logprob_path`.",
        {"count": range(1, MOST_BEST + 1)},
        traits=frozenset({Trait.SUMS, Trait.PICKS}),
    ),
)
