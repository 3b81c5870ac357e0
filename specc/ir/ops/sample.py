"""The `sample` dialect: tokens drawn from the softmax of logits, as the largest of what has noise on it.

The largest of x / T + G is distributed as softmax(x / T) if G is Gumbel's, -log(-log u) of uniforms u that are
independent (Gumbel 1954; Maddison et al., arXiv 1411.0030). The same holds of the logarithms of sums of exp(x / T). So
to draw is one argmax over tiles of entries and one over the entries of a tile, with a noise for every tile instead of
every entry; no sum over the vocabulary is waited for, and what is drawn at a position depends on nothing but the logits
there, the request's seed and the position. Noise is counter based: Philox4x32-10 gives a key for every row of logits,
Philox2x32-7 a uniform for every tile and entry (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011).
"""

from __future__ import annotations

from specc.ir.opdef import OpDef

TILE = 16
"""Entries of a tile that is drawn as a whole: tile t has the entries from t * TILE on."""
TOKEN = 0
"""The ``kind`` of draws that are a token of the target's, after any position."""

OPS = (
    OpDef(
        "sample.keys",
        "seed: i64[B], temperature: f32[B], positions: i64[B, *x] -> keys: i64[B, *x], scales: f32[B, *x]",
        "What the noise of a row is made with: a key of seed, positions + ``offset`` and ``kind``, which is the same"
        " for no other draw, and 1 / temperature. Below a temperature of 1e-6 the scale is 0: there is no noise.",
        {"offset": range(2), "kind": range(1 << 16)},
    ),
    OpDef(
        "sample.top_k",
        "logits: T[B, *x, ?v], k: i32[B], within?: f32[B, *x] -> cuts: f32[B, *x]",
        "The k-th largest logit of every row, so that equal ones stay together; -inf for k below 1 or above v. Of the"
        " logits that are not below ``within``, as the other cuts, which is what they give at least.",
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
        "sample.draw",
        "logits: T[B, *x, ?v], rows: i64[B], keys: i64[B, *x], scales: f32[B, *x], cuts?: f32[B, *x]"
        " -> index: $dtype[B, *x, $keep], bad: i1[B, *x]",
        "An entry drawn from the softmax of every row's logits times its scale, of those not below its cut; where the"
        " scale is 0 and else as `vocab.argmax`. First one of the tiles of `TILE` entries is drawn by what they have"
        " together, then an entry of that tile.",
        {"dtype": str, "keep": str},
    ),
)
