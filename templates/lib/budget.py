"""The `budget` ops: estimates of a request, and the rows of the target that all requests of a batch share.

Blocks of values are as rows.py says.
"""

import triton
import triton.language as tl

PULL = tl.constexpr(2.0)
KEPT = tl.constexpr(0.97)
"""What a ratio begins with on either side, and what is left of its counts after a step."""
PARTS = tl.constexpr(1048576.0)
"""Whole numbers of which are added up what drafts of a tree are expected to be."""


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
def budget_largest(mass, KEEP: tl.constexpr):
    """The largest probability of each of the rows of masses f32[N, 4], or of f32[4]; with KEEP along an axis more."""
    number = tl.arange(0, 4)
    AXIS: tl.constexpr = len(mass.shape) - 1
    if AXIS == 1:
        number = number[None, :]
    top = tl.max(tl.where(number == 0, mass, float("-inf")), axis=AXIS)
    total = tl.sum(tl.where(number == 1, mass, 0.0), axis=AXIS)
    p = tl.where(top > float("-inf"), tl.div_rn(1.0, tl.where(total > 1.0, total, 1.0)), 0.0)
    if KEEP != "":
        p = tl.reshape(p, [p.shape[0], 1]) if AXIS == 1 else tl.full([1], p, tl.float32)
    return p


@triton.jit
def budget_judged(mass, tokens, column, SIZE_TOKENS: tl.constexpr):
    """Masses f32[N, 4] of drafts from `column` on, or f32[4] of one; of those of no token -inf, 1 and 0."""
    number = tl.arange(0, 4)
    node = tl.arange(0, triton.next_power_of_2(SIZE_TOKENS))
    nothing = tl.where(number == 0, float("-inf"), tl.where(number == 1, 1.0, 0.0))
    if len(mass.shape) == 1:
        there = tl.max(tl.where(node == column + 1, tokens, -1), axis=0) >= 0
    else:
        draft = tl.arange(0, mass.shape[0])[:, None]
        there = tl.max(tl.where(node[None, :] == column + 1 + draft, tokens[None, :], -1), axis=1)[:, None] >= 0
        nothing = nothing[None, :]
    return tl.where(there, mass, nothing)


@triton.jit
def budget_begin(rows):
    """Two numbers f32[2] that are 0."""
    return tl.zeros([2], tl.float32)


@triton.jit
def budget_estimate(confidence, agreement, S: tl.constexpr):
    """Estimates f32[S]: products of probabilities f32[S] up to each place, corrected by what a request has accepted."""
    c = tl.arange(0, triton.next_power_of_2(S))
    each = probability(probability(confidence) * ratio(agreement))
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
def budget_estimate_paths(
    scores_ptr, parent, agreement, estimate_ptr, b, E: tl.constexpr, N: tl.constexpr, A: tl.constexpr
):
    """Estimates f32[B, E] of paths, to memory, by their scores f32[B, E] in memory and parents i64[N].

    What a request has accepted corrects every draft of a path. No estimate is above the one before it.
    """
    node = tl.arange(0, triton.next_power_of_2(N))
    each = tl.where(node == 0, 1.0, probability(shares(scores_ptr, parent, b, E, N) * ratio(agreement)))
    estimate = each
    above = parent.to(tl.int32)
    for _ in range(A - 2):
        at = tl.maximum(above, 0)
        estimate *= tl.where(above > 0, tl.gather(each, at, 0), 1.0)
        above = tl.gather(parent.to(tl.int32), at, 0)
    estimate = tl.associative_scan(estimate, 0, least)
    tl.store(estimate_ptr + b * E + node - 1, estimate, mask=(node > 0) & (node < N))


@triton.jit
def least(one, other):
    """The smaller of two numbers."""
    return tl.minimum(one, other)


@triton.jit
def shares(scores_ptr, parent, b, E: tl.constexpr, N: tl.constexpr):
    """How probable nodes are behind their parents i64[N], f32[N] by paths' scores f32[B, E]; 0 without a parent."""
    node = tl.arange(0, triton.next_power_of_2(N))
    score = probability(tl.load(scores_ptr + b * E + node - 1, mask=(node > 0) & (node < N), other=1.0))
    whole = tl.maximum(score, tl.gather(score, tl.maximum(parent, 0).to(tl.int32), 0))
    return tl.where(parent < 0, 0.0, tl.div_rn(score, tl.where(whole > 0.0, whole, 1.0)))


@triton.jit
def budget_learn_paths(
    agreement, scores_ptr, parent, tokens, accept_index, accept_lens, b,
    E: tl.constexpr, N: tl.constexpr, A: tl.constexpr,
):  # fmt: skip
    """What a request has accepted and its draft expected, f32[2], with a step more of a tree with scores f32[B, E].

    Drafts that were judged are children of nodes i32[A] of the path. Whole numbers are added, so no order counts.
    """
    node, place = tl.arange(0, triton.next_power_of_2(N)), tl.arange(0, triton.next_power_of_2(A))
    path = tl.where((place < A) & (accept_index >= 0), accept_index - b * N, -2)
    on_path = tl.max((parent[:, None] == path[None, :]).to(tl.int32), axis=1) > 0
    judged = on_path & (tokens >= 0) & (node < N)
    found = (shares(scores_ptr, parent, b, E, N) * PARTS).to(tl.int32)
    expected = tl.sum(tl.where(judged, found, 0), axis=0).to(tl.float32) / PARTS
    accepted = tl.maximum(accept_lens - 1, 0).to(tl.float32)
    return (agreement + tl.where(tl.arange(0, 2) == 0, accepted, expected)) * KEPT


@triton.jit
def ratio(agreement):
    """How far to believe a draft, by the numbers f32[2] of what a request has accepted and its draft expected."""
    which = tl.arange(0, 2)
    accepted = tl.sum(tl.where(which == 0, agreement, 0.0), axis=0)
    expected = tl.sum(tl.where(which == 1, agreement, 0.0), axis=0)
    return tl.div_rn(accepted + PULL, expected + PULL)


@triton.jit
def budget_cut(tokens, lens, SIZE_TOKENS: tl.constexpr):
    """Tokens i64[SIZE_TOKENS] with -1 from column `lens` on."""
    return tl.where(tl.arange(0, triton.next_power_of_2(SIZE_TOKENS)) < lens, tokens, -1)


@triton.jit
def packed_row(logits_ptr, b, program, programs, lens_ptr, starts_ptr, ROWS: tl.constexpr, STRIDE: tl.constexpr):
    """Where rows STRIDE apart, ROWS of a request, would begin if that of this program's column were a packed one."""
    return packed_at(logits_ptr, b, program // (programs // ROWS), lens_ptr, starts_ptr, ROWS, STRIDE)


@triton.jit
def packed_on_path(
    logits_ptr, b, program, programs, path_ptr, lens_ptr, starts_ptr,
    ROWS: tl.constexpr, STRIDE: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """The same of the column that the place i32[PLACES] of this program has on a path, whatever that is without one."""
    column = tl.load(path_ptr + b * PLACES + program // (programs // PLACES)) - b * ROWS
    return packed_at(logits_ptr, b, column, lens_ptr, starts_ptr, ROWS, STRIDE)


@triton.jit
def packed_at(logits_ptr, b, column, lens_ptr, starts_ptr, ROWS: tl.constexpr, STRIDE: tl.constexpr):
    """The same of a column i32, or of each of several.

    It is the last row of a request that has fewer; of one that has none another's.
    """
    row = tl.maximum(tl.load(starts_ptr + b) + tl.minimum(column, tl.load(lens_ptr + b) - 1), 0)
    # 64-bit: B * ROWS * STRIDE may pass 2**31.
    return logits_ptr + (row - b * ROWS - column).to(tl.int64) * STRIDE


@triton.jit
def packed_rows(logits_ptr, b, lens_ptr, starts_ptr, ROWS: tl.constexpr, STRIDE: tl.constexpr):
    """The same of every column of a request, up to a power of 2 of them."""
    column = tl.minimum(tl.arange(0, triton.next_power_of_2(ROWS)), ROWS - 1)
    return packed_at(logits_ptr, b, column, lens_ptr, starts_ptr, ROWS, STRIDE)


@triton.jit
def keys_of(estimate_ptr, rows_ptr, requests, S: tl.constexpr, REQUESTS: tl.constexpr):
    """Keys i32[lanes] of all drafts, by estimates f32[S] of every one of `requests`; -1 of what is none.

    One lane stands for one draft, place by place. Keys are estimates' bits, which are ordered as numbers from 0 on are.
    """
    draft = tl.arange(0, triton.next_power_of_2(S) * REQUESTS)
    place, request = draft // REQUESTS, draft % REQUESTS
    alive = tl.load(rows_ptr + request, mask=request < requests, other=0) != 0
    there = alive & (place < S)
    estimate = tl.load(estimate_ptr + request * S + place, mask=there, other=0.0)
    return tl.where(there, probability(estimate).to(tl.int32, bitcast=True), -1)


@triton.jit
def taken_of(key, requests, G: tl.constexpr, S: tl.constexpr, REQUESTS: tl.constexpr, BITS: tl.constexpr):
    """Which of the drafts of `keys_of`, their first S alone, have a row of `requests` times G; the roots have theirs.

    The least estimate that has a row is found bit by bit, then the last of the drafts that are as probable. BITS hold
    one number more than there are lanes.
    """
    draft = tl.arange(0, key.shape[0])
    key = tl.where(draft < S * REQUESTS, key, -1)
    roots = tl.sum(((key >= 0) & (draft < REQUESTS)).to(tl.int32), axis=0)
    spare = tl.minimum(requests * G - roots, roots * S)
    least = 0
    for bit in range(30):  # not unrolled: several budgets search in one launch
        higher = least | (1 << (29 - bit))
        least = tl.where(tl.sum((key >= higher).to(tl.int32), axis=0) >= spare, higher, least)
    left = spare - tl.sum((key > least).to(tl.int32), axis=0)
    end = 0
    for bit in range(BITS):
        further = end | (1 << (BITS - 1 - bit))
        before = (key == least) & (draft < further)
        end = tl.where(tl.sum(before.to(tl.int32), axis=0) <= left, further, end)
    return (key > least) | ((key == least) & (draft < end))


@triton.jit
def rows_of(key, taken, PLACES: tl.constexpr, REQUESTS: tl.constexpr):
    """Rows i32[REQUESTS] of every request: of its root, and of its drafts that are taken."""
    root = (key >= 0) & (tl.arange(0, PLACES * REQUESTS) < REQUESTS)
    return tl.sum(tl.reshape(taken.to(tl.int32) + root.to(tl.int32), [PLACES, REQUESTS]), axis=0)


@triton.jit
def expected_tokens(
    key, estimate_ptr, rows_ptr, b, requests,
    G: tl.constexpr, S: tl.constexpr, STRIDE: tl.constexpr, REQUESTS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Tokens that request b is expected to emit if each had S drafts and G rows; STRIDE are all that have keys."""
    mine = S
    if G <= S:
        taken = taken_of(key, requests, G, S, REQUESTS, BITS)
        mine = tl.sum((taken & (tl.arange(0, key.shape[0]) % REQUESTS == b)).to(tl.int32), axis=0)
    alive = tl.load(rows_ptr + b) != 0
    expected = tl.where(alive, 1.0, 0.0)
    for place in tl.static_range(S):
        estimate = probability(tl.load(estimate_ptr + b * STRIDE + place))
        expected += tl.where(alive & (place < mine), estimate, 0.0)
    return expected
