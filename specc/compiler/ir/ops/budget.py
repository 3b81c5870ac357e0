"""The `budget` dialect: which drafts of a batch are verified, where the target reads fewer rows than were drafted.

The target's rows are *packed*: those of a request follow each other, request after request, and ``[B, G]`` has room for
G of each on average. Rows behind them all are padding. The design is docs/budgets.md.
"""

from __future__ import annotations

from specc.compiler.ir.opdef import OpDef, Trait

LIMIT, TAKE, CUT = "budget.limit", "budget.take", "budget.cut"
"""What an algorithm asks for, and what becomes of it."""
EXPECT = "budget.expect"
"""What an algorithm hands out for whoever chooses among budgets."""
SHARE = "verify_lens", "verify_starts"
"""The names of how many rows a request has, and of the first. They are inputs where the engine says them."""
PACK, UNPACK, LOGITS = "budget.pack", "budget.unpack", "budget.logits"
"""Between what is by request and packed rows."""
_ALONG = {"axis": str}, {"axis": "A"}
"""The axis of what is by request: the path of a chain by default."""

OPS = (
    OpDef("budget.only", "x: T[B, ?s, K] -> x: T[B, ?s]", "What the only candidate of every place has."),
    OpDef(
        "budget.start",
        "p: f32[B, K] -> confidence: f32[B, S]",
        "How probable the draft finds each of its tokens: the first; the others are not set (0 in the reference).",
    ),
    OpDef(
        "budget.append",
        "confidence: f32[B, S], p: f32[B, *x, K] -> confidence: f32[B, S]",
        "Set column ``column``, by the first number of each request.",
        {"column": range(1, 513)},
        inplace=True,
        indexes={"column": 0},
    ),
    OpDef(
        "budget.largest",
        "mass: f32[B, *x, 3] -> p: f32[B, *x, $keep]",
        "The largest probability of a row by its `sample.mass`, whichever entry is drawn of it: 1 over the sum, and 0"
        " of a row that has no probability.",
        {"keep": str},
    ),
    OpDef(
        "budget.judged",
        "mass: f32[B, *x, 3], tokens: i64[B, ?n] -> judged: f32[B, *x, 3]",
        "The mass of rows that drafts were drawn from, of draft number ``column`` and those behind it along *x. Of a"
        " draft that is no token, as behind the target's last row, that of a row without any probability: what is not"
        " judged leaves the target's probabilities whole.",
        {"column": range(512)},
        indexes={"column": "S"},
    ),
    OpDef(
        "budget.begin",
        "rows: i64[B] -> agreement: f32[B, 2]",
        "What a request begins with: nothing was accepted, and nothing expected.",
    ),
    OpDef(
        "budget.estimate",
        "confidence: f32[B, S], agreement: f32[B, 2] -> estimate: f32[B, S]",
        "How probable it is that each draft and all before it are accepted: the product of what the draft finds, each"
        " times (accepted + 2) / (expected + 2) of the request, at most 1. NaN and what is negative count as 0.",
    ),
    OpDef(
        "budget.learn",
        "agreement: f32[B, 2], confidence: f32[B, S], tokens: i64[B, ?n], accept_lens: i32[B] -> agreement: f32[B, 2]",
        "The drafts that were judged, those that are accepted and the first one that is not, of those that are tokens:"
        " how many are accepted is added to the first number, what the draft found of them to the second, and both are"
        " worth 0.97 of that.",
    ),
    OpDef(
        "budget.estimate_paths",
        "scores: f32[B, E], parent: i64[B, N], agreement: f32[B, 2] -> estimate: f32[B, E]",
        "How probable it is that each path of a tree is accepted: `budget.estimate` along it, of drafts that the draft"
        " finds as probable as their path's score is in shares of their parent's; at most that of the column before."
        " 0 of what has no parent.",
    ),
    OpDef(
        "budget.learn_paths",
        "agreement: f32[B, 2], scores: f32[B, E], parent: i64[B, N], tokens: i64[B, N], accept_index: i32[B, A],"
        " accept_lens: i32[B] -> agreement: f32[B, 2]",
        "As `budget.learn`: the drafts of a tree that were judged, those children of accepted nodes that are tokens."
        " What the draft found of each is rounded down to multiples of 2^-20.",
    ),
    OpDef(
        LIMIT,
        "tokens: i64[B, ?n], estimate: f32[B, ?e], rows: i64[B] -> tokens: i64[B, ?n]",
        "The tokens, with -1 in place of drafts for which the target has no row: `budget.take` says how many it has.",
        until="budgeted",
    ),
    OpDef(
        TAKE,
        "estimate: f32[B, ?e], rows: i64[B] -> lens: i32[B], starts: i32[B]",
        "Of B * G rows every request has one for its root, and the most probable drafts of the batch have the others:"
        " the lower place on ties, then the lower request. ``lens`` are the rows of each request, at most one more than"
        " it has drafts, and ``starts`` the first of them; padding rows have none.",
    ),
    OpDef(
        EXPECT,
        "estimate: f32[B, ?e], rows: i64[B] -> expected: f32[B, $columns]",
        "Tokens that a request is expected to emit, by column: of each pair ``drafts:rows`` of ``shapes`` as if so many"
        " drafts were all, and B times as many rows were shared out over them as `budget.take` does. One and the"
        " estimates of the drafts that have a row, added in their order; 0 of padding rows.",
        {"columns": range(1, 257), "shapes": str},
    ),
    OpDef(
        CUT,
        "tokens: i64[B, ?n], lens: i32[B] -> tokens: i64[B, ?n]",
        "The tokens, with -1 from column ``lens`` on.",
    ),
    OpDef(
        PACK,
        "value: i64[B, $axis], lens: i32[B], starts: i32[B] -> packed: i64[B, G]",
        "The first ``lens`` columns of every request, from flat row ``starts`` on; 0 behind them all. ``axis``: A, or N"
        " of a tree.",
        *_ALONG,
    ),
    OpDef(
        UNPACK,
        "packed: T[B, G, ?w], lens: i32[B], starts: i32[B], path?: i32[B, A] -> x: T[B, $axis, ?w]",
        "The rows of every request from flat row ``starts`` on; 0 from column ``lens`` on. With a ``path`` those of its"
        " nodes, b * N + column, and 0 where it has none.",
        *_ALONG,
        traits=frozenset({Trait.PICKS}),
    ),
    OpDef(
        LOGITS,
        "logits: T[B, G, ?v], lens: i32[B], starts: i32[B] -> logits: T[B, $axis, ?v]",
        "The same of logits, which reductions read where they are; from column ``lens`` on the last row again.",
        *_ALONG,
    ),
)
