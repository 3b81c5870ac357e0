"""The `vocab` dialect: reductions over a vocabulary.

The argmax rule is pinned, engines differ: the largest value, lowest index on ties, NaN as -inf, -0.0 == 0.0; a row of
only NaN and -inf gives index 0. A row is ``bad`` if it holds NaN or its largest value is not finite.
"""

from __future__ import annotations

from specc.ir.opdef import OpDef
from specc.ir.types import LARGEST

MOST_BEST = 32
"""Most of the most probable tokens that are handed out of a row."""

MOST_CHUNKS = 64
"""Most chunks of a vocabulary whose sums are added as a balanced tree, so that as many ranks may have a part each."""
_CHUNKS = range(1, MOST_CHUNKS + 1)
_SHARD = "logits: T[B, *x, ?v], rows: i64[B], rank: i64[1]"
_RECORDS = "records: i64[?r, B, *x, ?w], rows: i64[B]"

OPS = (
    OpDef(
        "vocab.argmax",
        "logits: T[B, *x, ?v], rows: i64[B] -> index: $dtype<?v>[B, *x, $keep], bad: i1[B, *x]",
        "Index of the largest logit of every row; padding rows: 0. ``keep`` names an axis of length 1 that stands for"
        " the vocabulary, or is empty.",
        {"dtype": str, "keep": str},
    ),
    OpDef(
        "vocab.topk",
        "logits: T[B, *x, ?v], rows: i64[B] -> p: f32[B, *x, K], index: i64<?v>[B, *x, K], bad: i1[B, *x]",
        "The K most probable tokens of every row, softmax in f32 over the whole vocabulary.",
    ),
    OpDef(
        "vocab.argmax_part",
        f"{_SHARD} -> record: i64[1, B, *x, $words]",
        "What a rank knows of ``vocab.argmax`` by its columns: the largest value, its token, whether there is NaN; with"
        " 2 ``words`` also the sum of exponentials, over ``chunks`` equal chunks in a fixed order.",
        {"words": range(1, 3), "chunks": _CHUNKS},
    ),
    OpDef(
        "vocab.argmax_merge",
        f"{_RECORDS} -> index: $dtype<$of>[B, *x, $keep], bad: i1[B, *x]",
        "``vocab.argmax`` of the records of all ranks. ``of`` is the vocabulary, empty where entries are tokens.",
        {"dtype": str, "keep": str, "of": str},
    ),
    OpDef(
        "vocab.logprob_merge",
        f"{_RECORDS} -> logprob: f32[B, *x]",
        "``vocab.logprob`` of the argmax, of the records of all ranks, whose sums are added as a balanced tree.",
    ),
    OpDef(
        "vocab.topk_part",
        f"{_SHARD} -> record: i64[1, B, *x, $words]",
        "What a rank knows of ``vocab.topk`` by its columns: K values with their tokens, and the largest value, the sum"
        " of exponentials and whether there is NaN in one word more.",
        {"words": range(2, LARGEST["branch"] + 2), "chunks": _CHUNKS},
    ),
    OpDef(
        "vocab.topk_merge",
        f"{_RECORDS} -> p: f32[B, *x, K], index: i64<$of>[B, *x, K], bad: i1[B, *x]",
        "``vocab.topk`` of the records of all ranks; ``of`` as for ``vocab.argmax_merge``.",
        {"of": str},
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
    ),
    OpDef(
        "vocab.logprob_path",
        "logits: T[B, ?n, ?v], rows: i64[B], index: i32[B, ?a], path: i32[B, ?a] -> logprob: f32[B, ?a]",
        "``vocab.logprob`` along the accepted path: of entry i that of row ``path[i]`` of the batch at ``index[i]``; 0"
        " where ``path`` is negative. No other row is read.",
    ),
    OpDef(
        "vocab.best",
        "logits: T[B, *x, ?v], rows: i64[B] -> tokens: i32[B, *x, $count], logprobs: f32[B, *x, $count]",
        "The ``count`` most probable tokens of every row, lowest index first on ties, and the logs of their"
        " probabilities, as `vocab.logprob` has them; padding rows: 0.",
        {"count": range(1, MOST_BEST + 1)},
    ),
    OpDef(
        "vocab.best_path",
        "logits: T[B, ?n, ?v], rows: i64[B], path: i32[B, ?a] -> tokens: i32[B, ?a, $count],"
        " logprobs: f32[B, ?a, $count]",
        "``vocab.best`` along the accepted path, as `vocab.logprob_path`.",
        {"count": range(1, MOST_BEST + 1)},
    ),
)
