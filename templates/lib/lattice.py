"""A path over the candidates of a block's places, on what one program has in registers of a request.

A place is scored when the token before it is known: k products of r numbers, of which one row hangs on that token. No
table of all pairs is made.
"""

import triton
import triton.language as tl

from .best import key_index, sort_key
from .sample import log_of
from .topk import exp_below

LEAST = tl.constexpr(2.0**-126)
"""The smallest share of a candidate."""
WIDEST = tl.constexpr(64)
"""Most elements of a row that are multiplied at once: a KiB a warp with 16 candidates in f32."""
FILLED = tl.constexpr(2048)
"""Elements of a row of logits that are filled at once."""


@triton.jit
def row_of(table_ptr, token, V: tl.constexpr, R: tl.constexpr):
    """Where the rows of tokens i64 begin in a table [V, R]; the nearest one of tokens that it does not have."""
    return table_ptr + tl.minimum(tl.maximum(token, 0), V - 1) * R


@triton.jit
def shares_of(p):
    """The logarithms f32 of shares f32, of what is below LEAST or NaN that of LEAST."""
    return log_of(tl.where(p >= LEAST, tl.minimum(p, 1.0), LEAST))


@triton.jit
def of_place(x, place):
    """The row T[k] of a place in T[S, k]."""
    here = tl.arange(0, x.shape[0]) == place
    return tl.sum(tl.where(here[:, None], x, tl.zeros_like(x)), axis=0)


@triton.jit
def scores_of(
    share,
    candidate,
    token,
    state_ptr,
    before_ptr,
    after_ptr,
    live,
    V: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
):
    """Scores f32[k] of the candidates i64[k] of a place behind a token, NaN as -inf; -inf past the K-th.

    Rows are read from memory, the place's at `state_ptr`; none of padding, which is not live.
    """
    BLOCK: tl.constexpr = min(triton.next_power_of_2(R), WIDEST)
    k = tl.arange(0, share.shape[0])
    pair = tl.zeros_like(share)
    for first in range(0, R, BLOCK):
        r = first + tl.arange(0, BLOCK)
        there = (r < R) & live
        known = tl.load(row_of(before_ptr, token, V, R) + r, mask=there, other=0).to(tl.float32)
        known *= tl.load(state_ptr + r, mask=there, other=0).to(tl.float32)
        follows_ptr = row_of(after_ptr, candidate, V, R)[:, None] + r[None, :]
        follows = tl.load(follows_ptr, mask=there[None, :] & (k < K)[:, None], other=0).to(tl.float32)
        pair += tl.sum(follows * known[None, :], axis=1)
    score = share + pair
    return tl.where((k < K) & (score == score), score, float("-inf"))


@triton.jit
def lattice_walk(
    rows,
    bonus,
    p,
    index,
    states_ptr,
    before_ptr,
    after_ptr,
    b,
    S: tl.constexpr,
    V: tl.constexpr,
    SIZE_P: tl.constexpr,
    SIZE_STATES: tl.constexpr,
    CONFIDENCE: tl.constexpr,
):
    """The token i64[S] chosen at each place, of candidates index i64[S, k] with shares p f32[S, k]: see the op.

    With CONFIDENCE also how probable each is, f32[S].
    """
    live = rows != 0
    place = tl.arange(0, p.shape[0])
    k = tl.arange(0, p.shape[1])
    share = shares_of(p)
    token = bonus.to(tl.int64)
    tokens = tl.zeros([p.shape[0]], tl.int64)
    found = tl.zeros([p.shape[0]], tl.float32)
    for step in range(S):
        candidate = of_place(index, step)
        state_ptr = states_ptr + (b.to(tl.int64) * S + step) * SIZE_STATES
        tables = (state_ptr, before_ptr, after_ptr)
        score = scores_of(of_place(share, step), candidate, token, *tables, live, V, SIZE_P, SIZE_STATES)
        best = key_index(tl.max(sort_key(score, k), axis=0))
        token = tl.sum(tl.where(k == best, candidate, 0), axis=0)
        tokens = tl.where(place == step, token, tokens)
        if CONFIDENCE != "":
            top = tl.max(score, axis=0)
            e = tl.where(k < SIZE_P, exp_below(score, top + tl.zeros_like(score)), 0.0)
            one = tl.where(top > float("-inf"), tl.div_rn(1.0, tl.sum(e, axis=0)), 0.0)
            found = tl.where(place == step, one, found)
    chosen = tl.where(live, tokens, 0)
    if CONFIDENCE != "":
        chosen = chosen, tl.where(live, found, 0.0)
    return chosen


@triton.jit
def lattice_row(
    rows,
    p,
    index,
    tokens,
    token,
    states_ptr,
    before_ptr,
    after_ptr,
    logits_ptr,
    b,
    PLACE: tl.constexpr,
    S: tl.constexpr,
    V: tl.constexpr,
    SIZE_P: tl.constexpr,
    SIZE_STATES: tl.constexpr,
    SIZE_TOKEN: tl.constexpr,
    SIZE_LOGITS: tl.constexpr,
):
    """Write the logits f32[SIZE_LOGITS] of a place, whose candidates are entries index i64[S, k]: see the op."""
    live = rows != 0
    k = tl.arange(0, p.shape[1])
    if SIZE_TOKEN > 0:
        token = tl.sum(tl.where(tl.arange(0, token.shape[0]) == 0, token, 0), axis=0)
    state_ptr = states_ptr + (b.to(tl.int64) * S + PLACE) * SIZE_STATES
    tables = (state_ptr, before_ptr, after_ptr)
    share, candidate = of_place(shares_of(p), PLACE), of_place(tokens, PLACE)
    score = scores_of(share, candidate, token, *tables, live, V, SIZE_P, SIZE_STATES)
    row_ptr = logits_ptr + b.to(tl.int64) * SIZE_LOGITS
    nothing = tl.where(live, float("-inf"), 0.0)
    for first in range(0, SIZE_LOGITS, FILLED):
        column = first + tl.arange(0, FILLED)
        tl.store(row_ptr + column, tl.zeros([FILLED], tl.float32) + nothing, mask=column < SIZE_LOGITS)
    tl.debug_barrier()
    entry = tl.minimum(tl.maximum(of_place(index, PLACE), 0), SIZE_LOGITS - 1)
    tl.store(row_ptr + entry, score, mask=(k < SIZE_P) & live)
