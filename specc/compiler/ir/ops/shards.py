"""Logits that are sharded over ranks: the `comm` dialect, and parts and merges of reductions of the dialect `vocab`.

A forward of a rank hands over a shard of its columns, an axis of its own (`vocab_shard`): column c of rank r is that of
token r * Vs + c. Reductions over a shard are `vocab.argmax_part` and `vocab.topk_part`, whose records are gathered, and
merged on every rank in the same order.
"""

from __future__ import annotations

from specc.compiler.ir.opdef import COUNT, OpDef, Trait
from specc.compiler.ir.types import LARGEST

MOST_CHUNKS = 64
"""Most chunks of a vocabulary whose sums are added as a balanced tree, so that as many ranks may have a part each."""
_CHUNKS = range(1, MOST_CHUNKS + 1)
_SHARD = "logits: T[B, *x, ?v], rows: i64[B], rank: i64[1]"
_RECORDS = "records: i64[?r, B, *x, ?w], rows: i64[B]"

OPS = (
    OpDef(
        "comm.pad",
        "logits: T[B, *x, ?v], rank: i64[1] -> own: T[B, *x, ?v]",
        "Logits of a shard as they are, -inf in columns of no token: those from ``vocab`` on, counted over all ranks.",
        {"vocab": COUNT},
    ),
    OpDef(
        "comm.gather",
        "record: i64[1, B, *x, ?w] -> records: i64[R, B, *x, ?w]",
        "The records of all ranks, by rank: one collective, queued in the step.",
        effect="collective",
    ),
    OpDef(
        "vocab.argmax_part",
        f"{_SHARD} -> record: i64[1, B, *x, $words]",
        "What a rank knows of ``vocab.argmax`` by its columns: the largest value, its token, whether there is NaN; with"
        " 2 ``words`` also the sum of exponentials, over ``chunks`` equal chunks in a fixed order.",
        {"words": range(1, 3), "chunks": _CHUNKS},
        traits=frozenset({Trait.REDUCES, Trait.SUMS}),
    ),
    OpDef(
        "vocab.argmax_merge",
        f"{_RECORDS} -> index: $dtype<$of>[B, *x, $keep], bad: i1[B, *x]",
        "``vocab.argmax`` of the records of all ranks. ``of`` is the vocabulary, empty where entries are tokens.",
        {"dtype": str, "keep": str, "of": str},
        traits=frozenset({Trait.SUMS}),
    ),
    OpDef(
        "vocab.logprob_merge",
        f"{_RECORDS} -> logprob: f32[B, *x]",
        "``vocab.logprob`` of the argmax, of the records of all ranks, whose sums are added as a balanced tree.",
        traits=frozenset({Trait.SUMS}),
    ),
    OpDef(
        "vocab.topk_part",
        f"{_SHARD} -> record: i64[1, B, *x, $words]",
        "What a rank knows of ``vocab.topk`` by its columns: values with their tokens, the largest value, the sum of"
        " exponentials, and whether there is NaN in one word more.",
        {"words": range(2, LARGEST["branch"] + 2), "chunks": _CHUNKS},
        traits=frozenset({Trait.REDUCES, Trait.SUMS}),
    ),
    OpDef(
        "vocab.topk_merge",
        f"{_RECORDS} -> p: f32[B, *x, $axis], index: i64<$of>[B, *x, $axis], bad: i1[B, *x]",
        "``vocab.topk`` of the records of all ranks; ``of`` as for ``vocab.argmax_merge``.",
        {"axis": str, "of": str},
        {"axis": "K"},
        traits=frozenset({Trait.SUMS}),
    ),
)
