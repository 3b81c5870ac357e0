"""The `sample` dialect: tokens drawn from the softmax of logits, as the largest of what has noise on it.

The largest of x / T + G is distributed as softmax(x / T) if G is Gumbel's, -log(-log u) of uniforms u that are
independent (Gumbel 1954; Maddison et al., arXiv 1411.0030). The same holds of the logarithms of sums of exp(x / T). So
to draw is one argmax over tiles of entries and one over the entries of a tile, with a noise for every tile instead of
every entry; no sum over the vocabulary is waited for, and what is drawn at a position depends on nothing but the logits
there, the request's seed and the position. Noise is counter based: Philox4x32-10 gives a key for every row of logits,
Philox2x32-7 a uniform for every tile and entry (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011).
"""

from __future__ import annotations

from specc.compiler.ir.opdef import OpDef, Trait

TOKEN, DRAFT, COIN = range(3)
"""The ``kind`` of a draw: a token of the target's, by its position; by the position of the root, what is drafted, with
the number of the draft in the upper word, and the uniforms by which drafts are accepted."""


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
        pooled="counts",
    ),
    OpDef(
        "sample.penalize_nodes",
        f"logits: T[B, ?n, ?v], {_PENALTIES}, tokens: i64[B, ?n], parent?: i64[B, ?n] -> penalized: f32[B, ?n, ?v]",
        "``sample.penalize`` of the rows after nodes: what stands before a token that is drawn there is emitted, its"
        " node's token and those of the node's ancestors, without the root, which is counted already.",
        pooled="counts",
    ),
    OpDef(
        "sample.bias",
        "logits: T[B, *x, ?v], bias: f32[B, ?v] -> biased: f32[B, *x, ?v]",
        "Logits plus the request's bias of every token, in f32.",
        pooled="bias",
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
        traits=frozenset({Trait.REDUCES}),
    ),
)
