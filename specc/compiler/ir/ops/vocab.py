"""The `vocab` dialect: reductions over a vocabulary.

The argmax rule is pinned, engines differ: the largest value, lowest index on ties, NaN as -inf, -0.0 == 0.0; a row of
only NaN and -inf gives index 0. A row is ``bad`` if it holds NaN or its largest value is not finite.
"""

from __future__ import annotations

from specc.compiler.ir.opdef import OpDef, Trait

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
        "logits: T[B, *x, ?v], rows: i64[B] -> p: f32[B, *x, $axis], index: i64<?v>[B, *x, $axis], bad: i1[B, *x]",
        "The most probable tokens of every row, as many as ``axis`` has, softmax in f32 over the whole vocabulary.",
        {"axis": str},
        {"axis": "K"},
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
)
