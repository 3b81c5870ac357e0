"""Where a chain of drafts that were drawn ends, and which tokens follow: the `sample` ops of rejection and of blocks.

Blocks are as rows.py says. Probabilities are those of mass.py, the third number of a row's mass that of its draft.
"""

import triton
import triton.language as tl

from .sample import BELOW_ONE, uniform_bits


@triton.jit
def coins_of(number, key):
    """Uniforms f32 in (0, 1), numbers i32 of a key."""
    return tl.minimum((uniform_bits(number, key).to(tl.float32) + 0.5) * 2.0**-32, BELOW_ONE)


@triton.jit
def sample_weigh(
    rows, coins, scales, mass, masses_ptrs, b, masses_counts, MODE: tl.constexpr, SIZE_SCALES: tl.constexpr
):
    """The weights f32[SIZE_SCALES] of p after the nodes at which the drafts may end: see the op."""
    N: tl.constexpr = SIZE_SCALES
    c = tl.arange(0, triton.next_power_of_2(N))
    third = tl.arange(0, 4)[None, :] == 2
    p = tl.sum(tl.where(third, mass, 0.0), axis=1)
    q = tl.zeros([triton.next_power_of_2(N)], tl.float32)
    first = 0
    for i in tl.static_range(len(masses_ptrs)):
        here = (c >= first) & (c < first + masses_counts[i]) & (c < N - 1)
        q += tl.load(masses_ptrs[i] + (b * masses_counts[i] + c - first) * 3 + 2, mask=here, other=0.0)
        first += masses_counts[i]
    u = coins_of(c, coins)
    if MODE == "rejection":
        count = tl.min(tl.where((q > 0.0) & (u * q < p) & (c < N - 1), N - 1, c), axis=0)
        weights = tl.where(c == count, 1.0, 0.0)
    else:
        weights = _along(p, q, u, N)
    return tl.where((c < N) & (rows != 0), tl.where(scales > 0.0, weights, 0.0), 0.0)


@triton.jit
def _along(p, q, u, N: tl.constexpr):
    # The weights of a block: 1 of the root, min(1, w p / q) of every node after it, 0 of those with u above.
    c = tl.arange(0, triton.next_power_of_2(N))
    weights = tl.where(c == 0, 1.0, 0.0)
    weight = tl.full([], 1.0, tl.float32)
    for i in range(1, N):
        before = c == i - 1
        share = tl.sum(tl.where(before, q, 0.0), axis=0)
        ratio = tl.div_rn(weight * tl.sum(tl.where(before, p, 0.0), axis=0), tl.where(share > 0.0, share, 1.0))
        weight = tl.where(share > 0.0, tl.where(ratio >= 1.0, 1.0, tl.where(ratio > 0.0, ratio, 0.0)), 0.0)
        coin = tl.sum(tl.where(before, u, 0.0), axis=0)
        weights = tl.where(c == i, tl.where(coin < weight, weight, 0.0), weights)
    whole = tl.max(tl.where(c == N - 1, weights, 0.0), axis=0)
    return tl.where(c < N - 1, tl.where(whole > 0.0, 0.0, weights), weights)


@triton.jit
def sample_accept(tokens, rows, coins, drawn, weights, left, sums, SIZE_TOKENS: tl.constexpr):
    """The token i32[SIZE_TOKENS] after every node of a chain: see the op."""
    N: tl.constexpr = SIZE_TOKENS
    c = tl.arange(0, triton.next_power_of_2(N))
    u = coins_of(tl.maximum(c - 1, 0), coins)
    some = (weights > 0.0) & (c < N)
    passed = (u * (sums + 1.0 - weights) < sums) | (c == 0) | (c == N - 1)
    last = tl.max(tl.where(some & passed, c, -1), axis=0)
    first = tl.min(tl.where(some, c, N), axis=0)
    end = tl.where(last < 0, tl.where(first < N, first, -1), last)
    draft = tl.gather(tokens, tl.minimum(c + 1, N - 1), 0).to(tl.int32)
    index = tl.where(c < end, draft, tl.where((c == end) & (c < N - 1), left, drawn))
    return tl.where(rows != 0, index, 0)
