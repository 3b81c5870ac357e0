"""The `head` dialect: a draft's head of the vocabulary, which the program multiplies hidden rows by itself.

A forward then hands over the rows that its head would read, and no logits. What is asked of them, an argmax or a top-k,
is computed where a tile of them is made: parts of the vocabulary leave records, which `vocab.argmax_merge` and
`vocab.topk_merge` join as they join those of ranks. Part g of the G parts has the entries from g * ceil(Vd / G) on.

Logits are sums in f32 of products of hidden rows and weights. 8-bit weights are whole numbers (i8) or of the format
e4m3 (f8), and ``scale`` says what one of a row is worth: it multiplies the sum. GPUs multiply them by numbers of the
same kind, so a hidden row becomes two rows of 8 bits, ``high`` and ``low``, and ``worth``: in i8 a number is
(256 high + low) worth, in f8 (high + low) worth. Padding rows are computed like others.

Logits of a block of drafts know nothing of each other. A bias of low rank tells each draft which one stands before it:
a token's row of one table, times the other table, is added to the logits behind it. The other table may have 8 bits
and a ``scale``: it is multiplied as numbers of the first one's dtype, which have room for those of 8 bits.
"""

from __future__ import annotations

from specc.compiler.ir.opdef import COUNT, OpDef
from specc.compiler.ir.types import LARGEST
from specc.runtime.plan.draft_head import BIAS

_ROWS = "states: T[B, *x, ?w], weight: $dtype[?v, ?w], low?: T[B, *x, ?w], worth?: f32[B, *x], scale?: f32[?v]"
_RECORDS = "records: i64[Vp, B, *x, $words]"

_BIASED = "block: T[B, S, ?v], token: i64[B, *y], first: U[?u, ?w], second: $dtype[?v, ?w], scale?: f32[?v]"

LOGITS, HALVES, BIASED = "head.logits", "head.halves", "head.biased"
PARTS = {"vocab.argmax": "head.argmax_part", "vocab.topk": "head.topk_part"}
"""The op that gives what parts know of a reduction, by the reduction."""
BIASED_PARTS = {"vocab.argmax": "head.biased_part"}
"""The same of reductions of biased logits."""

MARKOV = "markov_w1", BIAS
"""The engine's tables of a draft's Markov head: rows [V, r] by the token before, and [Vd, r], what they multiply."""

OPS = (
    OpDef(
        HALVES,
        "states: T[B, *x, ?w] -> high: $dtype[B, *x, ?w], low: $dtype[B, *x, ?w], worth: f32[B, *x]",
        "Hidden rows as two rows of 8 bits each, and what a number of them is worth: a power of two; NaN of a row that"
        " has NaN or an infinity, whose logits are NaN then.",
        {"dtype": str},
    ),
    OpDef(
        LOGITS,
        f"{_ROWS} -> logits: f32[B, *x, ?v]",
        "Logits of hidden rows, for whatever reads them otherwise than by parts. Beside weights in 8 bits ``states``"
        " are the high halves of rows.",
        {"dtype": str},
    ),
    OpDef(
        PARTS["vocab.argmax"],
        f"{_ROWS} -> {_RECORDS}",
        "What each part of the vocabulary knows of the `vocab.argmax` of the logits: one word of 64 bits, as in"
        " `vocab.argmax_part`.",
        {"dtype": str, "words": range(1, 2)},
    ),
    OpDef(
        PARTS["vocab.topk"],
        f"{_ROWS} -> {_RECORDS}",
        "What each part of the vocabulary knows of the `vocab.topk` of the logits: its best keys, and in one word more"
        " its largest value and the sum of exponentials, as in `vocab.topk_part`.",
        {"dtype": str, "words": range(2, LARGEST["branch"] + 2)},
    ),
    OpDef(
        BIASED,
        f"{_BIASED} -> biased: f32[B, ?v]",
        "Row ``row`` of a block's logits, plus ``second`` times the row of ``first`` that a token has, in f32. Of"
        " several tokens of a request the first one counts.",
        {"dtype": str, "row": COUNT},
        indexes={"row": "S"},
    ),
    OpDef(
        BIASED_PARTS["vocab.argmax"],
        f"{_BIASED} -> records: i64[Vp, B, $words]",
        "What each part of the vocabulary knows of the `vocab.argmax` of biased logits, as `head.argmax_part`.",
        {"dtype": str, "row": COUNT, "words": range(1, 2)},
        indexes={"row": "S"},
    ),
)
