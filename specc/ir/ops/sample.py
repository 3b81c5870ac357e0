"""The `sample` dialect: tokens drawn from the softmax of logits, as the largest of logits with noise on them.

The largest of x / T + G is distributed as softmax(x / T) if G is Gumbel's, -log(-log u) of uniforms u that are
independent (Gumbel 1954; Maddison et al., arXiv 1411.0030). So to draw is one argmax, whatever the sums over the
vocabulary, and what is drawn at a position depends on nothing but the logits there, the request's seed and the
position. Noise is counter based: Philox4x32-10 gives a key for every row of logits, Philox2x32-7 a uniform for every
entry of the vocabulary (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011).
"""

from __future__ import annotations

from specc.ir.opdef import OpDef

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
        "sample.allow",
        "logits: T[B, *x, ?v], bitmask: i32[B, *x, ?w] -> allowed: f32[B, *x, ?v]",
        "Logits in f32, -inf for every entry v whose bit, v % 32 of word v // 32, is 0, or is not there.",
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
        "sample.perturb",
        "logits: T[B, *x, ?v], keys: i64[B, *x], scales: f32[B, *x], cuts?: f32[B, *x] -> noisy: f32[B, *x, ?v]",
        "Logits times the row's scale, in f32, with Gumbel noise, -inf below the row's cut; where the scale is 0, the"
        " logits. NaN and infinities stay what they are.",
    ),
)
