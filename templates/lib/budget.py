"""The `budget` ops: estimates of a request, and the rows of the target that all requests of a batch share.

Blocks of values are as rows.py says.
"""

import triton
import triton.language as tl


@triton.jit
def probability(p):
    """Numbers f32 from 0 to 1; NaN is 0."""
    return tl.where(p > 0.0, tl.where(p < 1.0, p, 1.0), 0.0)


@triton.jit
def budget_only(index):
    """The tokens i64[N] of candidates i64[N, 1]."""
    return tl.reshape(index, [index.shape[0]])


@triton.jit
def budget_start(p, S: tl.constexpr):
    """Estimates f32[S] of which the first is the probability f32[1], and the others are 0."""
    return tl.where(tl.arange(0, triton.next_power_of_2(S)) == 0, probability(p), 0.0)


@triton.jit
def budget_append(estimate, p, column, SIZE_ESTIMATE: tl.constexpr):
    """Estimates f32[SIZE_ESTIMATE] with entry `column` that of the one before it times the probability f32[1, 1]."""
    c = tl.arange(0, triton.next_power_of_2(SIZE_ESTIMATE))
    before = tl.sum(tl.where(c == column - 1, estimate, 0.0), axis=0)
    return tl.where(c == column, before * tl.reshape(probability(p), [1]), estimate)


@triton.jit
def budget_product(p, S: tl.constexpr):
    """Estimates f32[S] of probabilities f32[S, 1]: the product of those up to each place."""
    c = tl.arange(0, triton.next_power_of_2(S))
    each = tl.reshape(probability(p), [p.shape[0]])
    estimate, so_far = each, 1.0
    for place in tl.static_range(S):
        so_far *= tl.sum(tl.where(c == place, each, 0.0), axis=0)
        estimate = tl.where(c == place, so_far, estimate)
    return estimate


@triton.jit
def budget_cut(tokens, lens, SIZE_TOKENS: tl.constexpr):
    """Tokens i64[SIZE_TOKENS] with -1 from column `lens` on."""
    return tl.where(tl.arange(0, triton.next_power_of_2(SIZE_TOKENS)) < lens, tokens, -1)


@triton.jit
def packed_row(logits_ptr, b, program, programs, lens_ptr, starts_ptr, ROWS: tl.constexpr, STRIDE: tl.constexpr):
    """Where rows STRIDE apart, ROWS of a request, would begin if that of this program were a packed one.

    It is that of the program's column, or the last one of a request that has fewer.
    """
    column = program // (programs // ROWS)
    row = tl.load(starts_ptr + b) + tl.minimum(column, tl.load(lens_ptr + b) - 1)
    # 64-bit: B * ROWS * STRIDE may pass 2**31.
    return logits_ptr + (row - b * ROWS - column).to(tl.int64) * STRIDE


@triton.jit
def share_rows(estimate_ptr, rows_ptr, requests, G: tl.constexpr, S: tl.constexpr, REQUESTS: tl.constexpr):
    """Rows i32[REQUESTS] that every one of `requests` has of G times as many, by estimates f32[requests, S].

    One lane stands for one draft, place by place. The least estimate that has a row is found bit by bit, then the last
    of the drafts that are as probable; keys are estimates' bits, which are ordered as numbers from 0 on are.
    """
    PLACES: tl.constexpr = triton.next_power_of_2(S)
    draft = tl.arange(0, PLACES * REQUESTS)
    place, request = draft // REQUESTS, draft % REQUESTS
    alive = tl.load(rows_ptr + request, mask=request < requests, other=0) != 0
    there = alive & (place < S)
    estimate = tl.load(estimate_ptr + request * S + place, mask=there, other=0.0)
    key = tl.where(there, probability(estimate).to(tl.int32, bitcast=True), -1)
    roots = tl.sum((alive & (place == 0)).to(tl.int32), axis=0)
    spare = tl.minimum(requests * G - roots, roots * S)
    least = 0
    for bit in tl.static_range(30):
        higher = least | (1 << (29 - bit))
        least = tl.where(tl.sum((key >= higher).to(tl.int32), axis=0) >= spare, higher, least)
    left = spare - tl.sum((key > least).to(tl.int32), axis=0)
    equal = key == least
    end = 0
    BITS: tl.constexpr = 1 + (PLACES * REQUESTS).bit_length()
    for bit in tl.static_range(BITS):
        further = end | (1 << (BITS - 1 - bit))
        end = tl.where(tl.sum((equal & (draft < further)).to(tl.int32), axis=0) <= left, further, end)
    taken = (key > least) | (equal & (draft < end))
    root = alive & (place == 0)
    return tl.sum(tl.reshape((taken.to(tl.int32) + root.to(tl.int32)), [PLACES, REQUESTS]), axis=0)
