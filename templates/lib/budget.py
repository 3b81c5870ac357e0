"""The `budget` ops: estimates of a request, and the rows of the target that all requests of a batch share.

Blocks of values are as rows.py says.
"""

import triton
import triton.language as tl

PULL = tl.constexpr(2.0)
KEPT = tl.constexpr(0.97)
"""What a ratio begins with on either side, and what is left of its counts after a step."""


@triton.jit
def probability(p):
    """Numbers f32 from 0 to 1; NaN is 0."""
    return tl.where(p > 0.0, tl.where(p < 1.0, p, 1.0), 0.0)


@triton.jit
def budget_only(x):
    """The entries T[N] of candidates T[N, 1]."""
    return tl.reshape(x, [x.shape[0]])


@triton.jit
def budget_start(p, S: tl.constexpr):
    """Probabilities f32[S] of which the first is f32[1], and the others are 0."""
    return tl.where(tl.arange(0, triton.next_power_of_2(S)) == 0, p, 0.0)


@triton.jit
def budget_append(confidence, p, column, SIZE_CONFIDENCE: tl.constexpr):
    """Probabilities f32[SIZE_CONFIDENCE] with entry `column` replaced by f32[1, 1]."""
    return tl.where(tl.arange(0, triton.next_power_of_2(SIZE_CONFIDENCE)) == column, tl.reshape(p, [1]), confidence)


@triton.jit
def budget_begin(rows):
    """Two numbers f32[2] that are 0."""
    return tl.zeros([2], tl.float32)


@triton.jit
def budget_estimate(confidence, agreement, S: tl.constexpr):
    """Estimates f32[S]: products of probabilities f32[S] up to each place, corrected by what a request has accepted."""
    c, which = tl.arange(0, triton.next_power_of_2(S)), tl.arange(0, 2)
    accepted = tl.sum(tl.where(which == 0, agreement, 0.0), axis=0)
    expected = tl.sum(tl.where(which == 1, agreement, 0.0), axis=0)
    each = probability(probability(confidence) * tl.div_rn(accepted + PULL, expected + PULL))
    estimate, so_far = each, 1.0
    for place in tl.static_range(S):
        so_far *= tl.sum(tl.where(c == place, each, 0.0), axis=0)
        estimate = tl.where(c == place, so_far, estimate)
    return estimate


@triton.jit
def budget_learn(agreement, confidence, tokens, accept_lens, S: tl.constexpr, SIZE_TOKENS: tl.constexpr):
    """What a request has accepted and its draft expected, f32[2], with a step more."""
    c, node = tl.arange(0, triton.next_power_of_2(S)), tl.arange(0, triton.next_power_of_2(SIZE_TOKENS))
    rows = tl.sum(((node < SIZE_TOKENS) & (tokens >= 0)).to(tl.int32), axis=0)
    judged = tl.minimum(accept_lens, rows - 1)
    accepted = tl.maximum(accept_lens - 1, 0).to(tl.float32)
    expected = 0.0
    for place in tl.static_range(S):
        found = tl.sum(tl.where(c == place, probability(confidence), 0.0), axis=0)
        expected += tl.where(place < judged, found, 0.0)
    return (agreement + tl.where(tl.arange(0, 2) == 0, accepted, expected)) * KEPT


@triton.jit
def budget_cut(tokens, lens, SIZE_TOKENS: tl.constexpr):
    """Tokens i64[SIZE_TOKENS] with -1 from column `lens` on."""
    return tl.where(tl.arange(0, triton.next_power_of_2(SIZE_TOKENS)) < lens, tokens, -1)


@triton.jit
def packed_row(logits_ptr, b, program, programs, lens_ptr, starts_ptr, ROWS: tl.constexpr, STRIDE: tl.constexpr):
    """Where rows STRIDE apart, ROWS of a request, would begin if that of this program were a packed one.

    It is that of the program's column, or the last one of a request that has fewer; of one that has none another's.
    """
    column = program // (programs // ROWS)
    row = tl.maximum(tl.load(starts_ptr + b) + tl.minimum(column, tl.load(lens_ptr + b) - 1), 0)
    # 64-bit: B * ROWS * STRIDE may pass 2**31.
    return logits_ptr + (row - b * ROWS - column).to(tl.int64) * STRIDE


@triton.jit
def share_rows(
    estimate_ptr,
    rows_ptr,
    requests,
    G: tl.constexpr,
    S: tl.constexpr,
    STRIDE: tl.constexpr,
    REQUESTS: tl.constexpr,
    BITS: tl.constexpr,
):
    """Rows i32[REQUESTS] that every one of `requests` has of G times as many, by the first S of estimates f32[STRIDE].

    One lane stands for one draft, place by place. The least estimate that has a row is found bit by bit, then the last
    of the drafts that are as probable; keys are estimates' bits, which are ordered as numbers from 0 on are.
    BITS hold one number more than there are lanes.
    """
    PLACES: tl.constexpr = triton.next_power_of_2(S)
    draft = tl.arange(0, PLACES * REQUESTS)
    place, request = draft // REQUESTS, draft % REQUESTS
    alive = tl.load(rows_ptr + request, mask=request < requests, other=0) != 0
    there = alive & (place < S)
    estimate = tl.load(estimate_ptr + request * STRIDE + place, mask=there, other=0.0)
    key = tl.where(there, probability(estimate).to(tl.int32, bitcast=True), -1)
    root = (alive & (place == 0)).to(tl.int32)
    roots = tl.sum(root, axis=0)
    spare = tl.minimum(requests * G - roots, roots * S)
    least = 0
    for bit in tl.static_range(30):
        higher = least | (1 << (29 - bit))
        least = tl.where(tl.sum((key >= higher).to(tl.int32), axis=0) >= spare, higher, least)
    left = spare - tl.sum((key > least).to(tl.int32), axis=0)
    equal = key == least
    end = 0
    for bit in tl.static_range(BITS):
        further = end | (1 << (BITS - 1 - bit))
        end = tl.where(tl.sum((equal & (draft < further)).to(tl.int32), axis=0) <= left, further, end)
    taken = (key > least) | (equal & (draft < end))
    return tl.sum(tl.reshape(taken.to(tl.int32) + root, [PLACES, REQUESTS]), axis=0)


@triton.jit
def expected_tokens(
    estimate_ptr,
    rows_ptr,
    b,
    requests,
    G: tl.constexpr,
    S: tl.constexpr,
    STRIDE: tl.constexpr,
    REQUESTS: tl.constexpr,
    BITS: tl.constexpr,
):
    """Tokens that request b is expected to emit if each had S drafts and G rows; the other parameters as above."""
    mine = S + 1
    if G <= S:
        lens = share_rows(estimate_ptr, rows_ptr, requests, G, S, STRIDE, REQUESTS, BITS)
        mine = tl.sum(tl.where(tl.arange(0, REQUESTS) == b, lens, 0), axis=0)
    alive = tl.load(rows_ptr + b) != 0
    expected = tl.where(alive, 1.0, 0.0)
    for place in tl.static_range(S):
        estimate = probability(tl.load(estimate_ptr + b * STRIDE + place))
        expected += tl.where(alive & (place < mine - 1), estimate, 0.0)
    return expected
