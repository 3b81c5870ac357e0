"""Rejection sampling of a chain's drafts, in the dialect `sample`: ops over what drafts were drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specc.compiler.ir.opdef import STEPS, OpDef, Trait

LOGITS_FIELD, MASS_FIELD = "draft_logits", "draft_mass"
"""Fields of the carry: the logits that a draft was drawn from, and their mass, with a number behind them."""
MASS = "sample.mass"


def row_fields(column: int) -> tuple[str, str]:
    """Return the names of the fields of one draft, or of all of a block."""
    return f"{LOGITS_FIELD}{column}", f"{MASS_FIELD}{column}"


def _of_masses(attrs: Mapping[str, Any]) -> str:
    return ", ".join(f"masses{i}: f32[B, *x{i}, 3]" for i in range(int(attrs["parts"])))


def _of_rows(attrs: Mapping[str, Any]) -> str:
    cuts = "cuts: f32[B, ?n], " if attrs["cut"] else ""
    entries = "entries: i32<?d>[?v], " if attrs.get("mapped") else ""
    rows = ", ".join(f"q{i}: D[B, *x{i}, ?d]" for i in range(int(attrs["parts"])))
    return f"{cuts}{entries}{_of_masses(attrs)}, {rows}"


OPS = (
    OpDef(
        MASS,
        "logits: T[B, *x, ?v], rows: i64[B], scales: f32[B, *x], entries: i64<$of>[B, *x, $keep], cuts?: f32[B, *x]"
        " -> mass: f32[B, *x, 3]",
        "What a row's probabilities are made of, softmax(logits * scale) of those not below the cut: the largest logit,"
        " which is infinite where it is no f32 times the scale,"
        " the sum of exp((x - largest) * scale), which is 1 where the largest is infinite, and one probability, that"
        " of entry number ``ahead`` further in ``entries``; 0 of one that there is not, 1 where the scale is 0."
        " If ``unscaled`` is 1, the sum where the scale is 0 is that of softmax(logits), else it is 1. Padding: 0.",
        {"ahead": range(2), "keep": str, "of": str, "unscaled": range(2)},
        {"of": "", "unscaled": 0},
        traits=frozenset({Trait.SUMS}),
    ),
    OpDef(
        "sample.weigh",
        "rows: i64[B], coins: i64[B], scales: f32[B, ?n], mass: f32[B, ?n, 3], masses*: ? -> weights: f32[B, ?n]",
        "At which nodes of a chain its drafts may end, and the weight of the target's p there, 0 elsewhere and where"
        " the scale is 0. ``mass`` is of the rows after nodes, with the probability of the draft there; ``masses`` are"
        " ``parts`` operands f32[B, *x, 3] of what the drafts were drawn from, with theirs, S rows in all. ``mode``"
        " rejection (Leviathan et al., arXiv 2211.17192): the node before the first draft that u q < p does not accept,"
        " 1. ``mode`` block (Sun et al., arXiv 2403.10444): nodes with u < w = min(1, w p / q) along the drafts, and"
        " the root, the last alone where it is one of them. Uniforms are the entries of ``coins``.",
        {"mode": str, "parts": STEPS},
        parts=_of_masses,
    ),
    OpDef(
        "sample.residual",
        "tokens: i64[B, ?n], logits: T[B, ?n, ?v], rows: i64[B], keys: i64[B, ?n], scales: f32[B, ?n],"
        " drawn: i32[B, ?n], mass: f32[B, ?n, 3], weights: f32[B, ?n], given*: ?"
        " -> index: i32[B, ?n], sums: f32[B, ?n]",
        "Of the nodes with a weight w, but the last node, a token drawn from max(w p - q, 0) without the draft, as"
        " ``sample.draw`` draws it with the row's key, and the sum of all of max(w p - q, 0). Of p without the draft"
        " where nothing is left, and ``drawn`` where that is nothing either. At most ``most`` nodes are looked at, the"
        " first; of others, and padding: 0. ``given``: the cuts of p if ``cut`` is 1, then ``parts`` masses of the"
        " drafts as of ``sample.weigh``, then the logits T[B, *x, Vd] that they are of. Where a largest logit is"
        " infinite, ``drawn`` has all of p and the draft all of q. If ``mapped`` is 1, ``entries`` are behind the cuts:"
        " of each token its number in the draft's vocabulary, -1 of a token that it has not, for which q is 0.",
        {"parts": STEPS, "cut": range(2), "most": STEPS, "mapped": range(2)},
        {"mapped": 0},
        parts=_of_rows,
        traits=frozenset({Trait.REDUCES, Trait.SUMS}),
        pooled="q",
    ),
    OpDef(
        "sample.accept",
        "tokens: i64[B, ?n], rows: i64[B], coins: i64[B], drawn: i32[B, ?n], weights: f32[B, ?n],"
        " left: i32[B, ?n], sums: f32[B, ?n] -> index: i32[B, ?n]",
        "The token after every node of a chain: its draft before the node at which the drafts end, ``left`` at that"
        " node, ``drawn`` elsewhere, at the last node, and of a request without weights. They end at the last node with"
        " a weight w where u (s + 1 - w) < s, s the sum, which the root and the last node need not fulfil; if there is"
        " none, at the first with a weight. Padding: 0.",
    ),
)
