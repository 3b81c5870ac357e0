"""The `sample` dialect: tokens drawn from the softmax of logits, as the largest of what has noise on it.

The largest of x / T + G is distributed as softmax(x / T) if G is Gumbel's, -log(-log u) of uniforms u that are
independent (Gumbel 1954; Maddison et al., arXiv 1411.0030). The same holds of the logarithms of sums of exp(x / T). So
to draw is one argmax over tiles of entries and one over the entries of a tile, with a noise for every tile instead of
every entry; no sum over the vocabulary is waited for, and what is drawn at a position depends on nothing but the logits
there, the request's seed and the position. Noise is counter based: Philox4x32-10 gives a key for every row of logits,
Philox2x32-7 a uniform for every tile and entry (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specc.ir.opdef import STEPS, OpDef

TOKEN, DRAFT, COIN = range(3)
"""The ``kind`` of a draw: a token of the target's, by its position; by the position of the root, what is drafted, with
the number of the draft in the upper word, and the uniforms by which drafts are accepted."""


def _of_masses(attrs: Mapping[str, Any]) -> str:
    return ", ".join(f"masses{i}: f32[B, *x{i}, 3]" for i in range(int(attrs["parts"])))


def _of_rows(attrs: Mapping[str, Any]) -> str:
    cuts = "cuts: f32[B, ?n], " if attrs["cut"] else ""
    rows = ", ".join(f"q{i}: D[B, *x{i}, ?d]" for i in range(int(attrs["parts"])))
    return f"{cuts}{_of_masses(attrs)}, {rows}"


_PENALTIES = "counts: i32[B, ?v], repetition: f32[B], frequency: f32[B], presence: f32[B]"

OPS = (
    OpDef(
        "sample.keys",
        "seed: i64[B], temperature: f32[B], positions: i64[B, *x] -> keys: i64[B, *x], scales: f32[B, *x]",
        "What the noise of a row is made with: a key of seed, positions + ``offset`` and ``kind``, which is the same"
        " for no other draw, and 1 / temperature. Below a temperature of 1e-6 the scale is 0: there is no noise.",
        {"offset": range(2), "kind": range(1 << 16)},
    ),
    OpDef(
        "sample.penalize",
        f"logits: T[B, *x, ?v], {_PENALTIES} -> penalized: f32[B, *x, ?v]",
        "Logits less what tokens of the text cost, in f32. A word of ``counts`` is twice as often as the token was"
        " emitted, and 1 more if it is in the prompt. Less frequency times that number, and presence where it is not"
        " 0; then, of tokens of prompt or output, times 1 / repetition (at most 2^10) if above 0, else times it.",
    ),
    OpDef(
        "sample.penalize_nodes",
        f"logits: T[B, ?n, ?v], {_PENALTIES}, tokens: i64[B, ?n], parent?: i64[B, ?n] -> penalized: f32[B, ?n, ?v]",
        "``sample.penalize`` of the rows after nodes: what stands before a token that is drawn there is emitted, its"
        " node's token and those of the node's ancestors, without the root, which is counted already.",
    ),
    OpDef(
        "sample.bias",
        "logits: T[B, *x, ?v], bias: f32[B, ?v] -> biased: f32[B, *x, ?v]",
        "Logits plus the request's bias of every token, in f32.",
    ),
    OpDef(
        "sample.allow",
        "logits: T[B, *x, ?v], bitmask: i32[B, *x, ?w] -> allowed: f32[B, *x, ?v]",
        "Logits in f32, -inf for every entry v whose bit, v % 32 of word v // 32, is 0, or is not there.",
    ),
    OpDef(
        "sample.top_k",
        "logits: T[B, *x, ?v], scales: f32[B, *x], k: i32[B], within?: f32[B, *x] -> cuts: f32[B, *x]",
        "The k-th largest logit of every row, so that equal ones stay together; -inf for k below 1 or above v, and, as"
        " of the other cuts, where the scale is 0. Of the logits that are not below ``within``, which is what cuts give"
        " at least.",
    ),
    OpDef(
        "sample.top_p",
        "logits: T[B, *x, ?v], scales: f32[B, *x], p: f32[B], within?: f32[B, *x] -> cuts: f32[B, *x]",
        "The largest logit such that those not below it have the share p of softmax(logits * scale); of p 1 none.",
    ),
    OpDef(
        "sample.min_p",
        "logits: T[B, *x, ?v], scales: f32[B, *x], p: f32[B], within?: f32[B, *x] -> cuts: f32[B, *x]",
        "The logit whose probability is p times the largest one; of p 0 none.",
    ),
    OpDef(
        "sample.scale",
        "logits: T[B, *x, ?v], scales: f32[B, *x], cuts?: f32[B, *x] -> scaled: f32[B, *x, ?v]",
        "Logits whose softmax is what `sample.draw` draws from, in f32: times the row's scale, -inf below its cut."
        " Where the scale is 0, which draws the largest, the logits as they are, whatever the cut.",
    ),
    OpDef(
        "sample.draw",
        "logits: T[B, *x, ?v], rows: i64[B], keys: i64[B, *x], scales: f32[B, *x], cuts?: f32[B, *x]"
        " -> index: $dtype<?v>[B, *x, $keep], bad: i1[B, *x]",
        "An entry drawn from the softmax of every row's logits times its scale, of those not below its cut; where the"
        " scale is 0 and else as `vocab.argmax`. First one of the tiles of 16 entries is drawn by what they have"
        " together, then an entry of that tile.",
        {"dtype": str, "keep": str},
    ),
    OpDef(
        "sample.mass",
        "logits: T[B, *x, ?v], rows: i64[B], scales: f32[B, *x], entries: i64[B, *x, $keep], cuts?: f32[B, *x]"
        " -> mass: f32[B, *x, 3]",
        "What a row's probabilities are made of, softmax(logits * scale) of those not below the cut: the largest logit,"
        " the sum of exp((x - largest) * scale), which is 1 where the largest is infinite, and one probability, that"
        " of entry number ``ahead`` further in ``entries``; 0 of one that there is not, 1 where the scale is 0."
        " Padding: 0.",
        {"ahead": range(2), "keep": str},
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
        " infinite, ``drawn`` has all of p and the draft all of q.",
        {"parts": STEPS, "cut": range(2), "most": STEPS},
        parts=_of_rows,
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
