"""The `vocab` dialect: reductions over a vocabulary.

The argmax rule is pinned, engines differ: the largest value, lowest index on ties, NaN as -inf, -0.0 == 0.0; a row of
only NaN and -inf gives index 0. A row is ``bad`` if it holds NaN or its largest value is not finite.
"""

from __future__ import annotations

from specc.ir.opdef import OpDef, Trait

MOST_BEST = 32
"""Most of the most probable tokens that are handed out of a row."""

OPS = (
    OpDef(
        "vocab.argmax",
        "logits: T[B, *x, ?v], rows: i64[B] -> index: $dtype<?v>[B, *x, $keep], bad: i1[B, *x]",
        "Index of the largest logit of every row; padding rows: 0. ``keep`` names an axis of length 1 that stands for"
        " the vocabulary, or is empty.",
        {"dtype": str, "keep": str},
        traits=frozenset({Trait.REDUCES}),
    ),
    OpDef(
        "vocab.topk",
        "logits: T[B, *x, ?v], rows: i64[B] -> p: f32[B, *x, K], index: i64<?v>[B, *x, K], bad: i1[B, *x]",
        "The K most probable tokens of every row, softmax in f32 over the whole vocabulary.",
        traits=frozenset({Trait.REDUCES, Trait.SUMS}),
    ),
    OpDef(
        "vocab.row",
        "logits: T[B, ?n, ?v], at: i64[B] -> row: T[B, ?v]",
        "Row ``at`` of every request, the first or the last one where there is no such row. Reductions and cuts"
        " read it where it is, and of what changed the rows before only what becomes of this one is computed.",
    ),
    OpDef(
        "vocab.translate",
        "index: i64<?v>[B, *x], map: i64[?v], rows: i64[B] -> token: i64[B, *x]",
        "The target's tokens that entries of a reduced vocabulary stand for; padding rows: 0.",
    ),
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
