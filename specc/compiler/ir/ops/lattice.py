"""The `lattice` dialect: a path over the candidates of a block's places, each place scored by the token before it.

A place's candidates are its most probable tokens, whatever stands before. A selector of low rank says how well a
candidate follows a token: by a row of each, and by a row that the draft gives of the place (DFlash2, the candidate
selector of its published drafts).
"""

from __future__ import annotations

from specc.compiler.ir.opdef import COUNT, OpDef

SELECTOR = "selector_before", "selector_after"
"""The engine's tables of a draft's selector: rows [V, r] of the tokens that stand before, and of those that follow."""

CANDIDATES = "L"
"""The axis of a place's candidates."""

_OF_PLACES = "states: T[B, S, ?r], before: U[V, ?r], after: U[V, ?r]"

OPS = (
    OpDef(
        "lattice.walk",
        f"rows: i64[B], bonus: i32[B], p: f32[B, S, ?k], index: i64[B, S, ?k], {_OF_PLACES}"
        " -> tokens: i64[B, S], confidence: $confidence[B, S]",
        "One candidate of each place, one place after the other: that with the largest log(p) + the sum over r of"
        " before[t, r] * states[r] * after[index, r], where t is the token chosen at the place before, and ``bonus``"
        " before the first. The first of equal ones, NaN as -inf, p no smaller than 2^-126. Padding: 0."
        " With ``confidence`` f32 also how probable each is, by the softmax of its place's scores; 0 where all are"
        " -inf.",
        {"confidence": str},
        {"confidence": ""},
    ),
    OpDef(
        "lattice.row",
        "rows: i64[B], p: f32[B, S, ?k], index: i64<$of>[B, S, ?k], tokens: i64[B, S, ?k], token: i64[B, *y],"
        f" {_OF_PLACES} -> logits: f32[B, $entries]",
        "The scores of a walk at place ``place`` behind a token, as logits: of an ``index`` that of its candidate, -inf"
        " of all others. ``tokens`` are the candidates as tokens of the target, whatever ``index`` numbers. Of several"
        " tokens of a request the first one counts. Padding: 0.",
        {"of": str, "entries": str, "place": COUNT},
        {"of": ""},
        indexes={"place": "S"},
    ),
)
