"""Records of all ranks, i64[RANKS, B, ROWS, words], as what a reduction over the whole vocabulary gives.

Parts of a vocabulary, which a head computes, leave records as ranks do.

Every rank has the same records, in one order, and does the same with them. They are dense for the rows of the launch.
"""

import triton
import triton.language as tl

from .best import order_value
from .shards import best_of_parts, join_parts
from .topk import exp_below
from .translate import vocab_translate

MOST_RANKS = tl.constexpr(16)
"""The most ranks of a program; more records are those of parts of one rank's vocabulary, added in any order."""


@triton.jit
def _words(records_ptr, b, live, word, RANKS: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr):
    # One word i64[R, RANKS] of every rank's record of a request's rows.
    row = tl.arange(0, triton.next_power_of_2(ROWS))[:, None]
    first = tl.arange(0, RANKS)[None, :].to(tl.int64) * tl.num_programs(0) + b
    return tl.load(records_ptr + (first * ROWS + row) * WORDS + word, mask=(row < ROWS) & live, other=0)


@triton.jit
def _block(x, SIZE: tl.constexpr):
    # What a request has of a value: a scalar, if it has no axis.
    if SIZE == 0:
        x = tl.max(x, axis=0)
    return x


@triton.jit
def vocab_argmax_merge(
    records_ptr,
    rows,
    b,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE_RECORDS: tl.constexpr,
    SIZE_INDEX: tl.constexpr,
    SIZE_BAD: tl.constexpr,
    DTYPE: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Index and bad of the largest logit of every row: see the op."""
    live = rows != 0
    words = _words(records_ptr, b, live, 0, RANKS, ROWS, SIZE_RECORDS)
    index, bad = _best_of_words(words, live & (tl.arange(0, triton.next_power_of_2(ROWS)) < ROWS))
    if DTYPE == "i32":
        index = index.to(tl.int32)
    index = _block(index, SIZE_INDEX)
    if KEEP != "" and SIZE_BAD > 0:
        index = index[:, None]
    return index, _block(bad.to(tl.int32), SIZE_BAD) != 0


@triton.jit
def _best_of_words(words, real):
    # Index i64[R] and bad i1[R] of the largest logit that words i64[R, RANKS] tell of; 0 and not bad where not real.
    best = tl.max(words >> 1, axis=1)
    top = order_value((best >> 31).to(tl.int32))
    bad = real & ((tl.abs(top) == float("inf")) | (tl.max(words & 1, axis=1) != 0))
    return tl.where(real, 0x7FFFFFFF - (best & 0x7FFFFFFF), 0), bad


@triton.jit
def merge_parts(
    records_ptr,
    rows_ptr,
    index_ptr,
    bad_ptr,
    map_ptr,
    token_ptr,
    requests,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    SIZE_MAP: tl.constexpr,
    BM: tl.constexpr,
):
    """What `vocab.argmax_merge`, and `vocab.translate` behind it, give for the records i64[PARTS, requests * ROWS].

    One program has all rows, BM at a time. It has seen the others arrive, which have stored the records. Without a map
    `map_ptr` and `token_ptr` are None.
    """
    part = tl.arange(0, PARTS)[None, :]
    for first in range(0, requests * ROWS, BM):
        row = first + tl.arange(0, BM)
        given = row < requests * ROWS
        live = given & (tl.load(rows_ptr + row // ROWS, mask=given, other=0) != 0)
        place = part * (requests * ROWS) + row[:, None]
        words = tl.load(records_ptr + place, mask=live[:, None], other=0, cache_modifier=".cg")
        index, bad = _best_of_words(words, live)
        tl.store(index_ptr + row, index, mask=given)
        tl.store(bad_ptr + row, bad, mask=given)
        if token_ptr is not None:
            tl.store(token_ptr + row, vocab_translate(index, live.to(tl.int32), map_ptr, SIZE_MAP), mask=given)


@triton.jit
def vocab_logprob_merge(
    records_ptr,
    rows,
    b,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    RANK_LEVELS: tl.constexpr,
    SIZE_RECORDS: tl.constexpr,
    SIZE_LOGPROB: tl.constexpr,
):
    """The log-probability f32 of the largest logit of every row: see the op."""
    live = rows != 0
    words = _words(records_ptr, b, live, 1, RANKS, ROWS, SIZE_RECORDS)
    top, mass = _joined_masses(words, ROWS, RANKS, RANK_LEVELS)
    nothing = top == float("-inf")
    logprob = tl.where(nothing, float("-inf"), -tl.log(tl.where(nothing | (mass == 0.0), 1.0, mass)))
    real = live & (tl.arange(0, triton.next_power_of_2(ROWS)) < ROWS)
    return _block(tl.where(real, logprob, 0.0), SIZE_LOGPROB)


@triton.jit
def _joined_masses(words, ROWS: tl.constexpr, RANKS: tl.constexpr, LEVELS: tl.constexpr):
    # The largest values and sums f32[R] of words i64[R, RANKS].
    tops = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    masses = tl.abs(words.to(tl.int32).to(tl.float32, bitcast=True))
    if RANKS > MOST_RANKS:
        top = tl.max(tops, axis=1)
        scale = exp_below(tops, tl.broadcast_to(top[:, None], tops.shape))
        return top, tl.sum(masses * scale, axis=1)
    return join_parts(tops, masses, triton.next_power_of_2(ROWS), RANKS, LEVELS)


@triton.jit
def vocab_topk_merge(
    records_ptr,
    rows,
    b,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    RANK_LEVELS: tl.constexpr,
    SIZE_RECORDS: tl.constexpr,
    SIZE_BAD: tl.constexpr,
):
    """p, index and bad of the K most probable tokens of every row: see the op."""
    R: tl.constexpr = triton.next_power_of_2(ROWS)
    K: tl.constexpr = SIZE_RECORDS - 1
    live = rows != 0
    words = _words(records_ptr, b, live, K, RANKS, ROWS, SIZE_RECORDS)
    top, mass = _joined_masses(words, ROWS, RANKS, RANK_LEVELS)
    nan = tl.min(words.to(tl.int32), axis=1) < 0
    first_ptr = records_ptr + b.to(tl.int64) * (ROWS * SIZE_RECORDS)
    stride = tl.num_programs(0).to(tl.int64) * (ROWS * SIZE_RECORDS)
    order, place = best_of_parts(first_ptr, stride, SIZE_RECORDS, 0, live, ROWS, K, RANKS)
    row = tl.arange(0, R)
    real = live & (row < ROWS)[:, None] & (tl.arange(0, triton.next_power_of_2(K)) < K)[None, :]
    weight = exp_below(order_value(order), top[:, None])
    p = tl.where(real & (top > float("-inf"))[:, None], weight / tl.where(mass == 0.0, 1.0, mass)[:, None], 0.0)
    index = tl.where(real, 0x7FFFFFFF - place, 0).to(tl.int64)
    bad = live & (row < ROWS) & (nan | (tl.abs(top) == float("inf")))
    if SIZE_BAD == 0:
        p = tl.reshape(p, [p.shape[1]])
        index = tl.reshape(index, [index.shape[1]])
    return p, index, _block(bad.to(tl.int32), SIZE_BAD) != 0
