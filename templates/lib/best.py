"""The K best of many elements, by order and place, without a wait for other warps in every round.

An element is two i32: the order of its value, and its place, the complement of its index. The larger order comes
first, then the larger place, which is the lower index; no two elements of a row are equal. In the order NaN is -inf
and -0.0 is 0.0. As a key i64 the order is in the upper half and the place in the lower, so that one integer maximum
compares both. NO_KEY is below every element, (NO_ORDER, -1) is none.

How a kernel uses it: `best_of_slices` or `insert_best`, once or for block after block, then `ranked` and `in_order`.
"""

import triton
import triton.language as tl

NO_ORDER = tl.constexpr(-(2**31))
NO_KEY = tl.constexpr(-(2**63))
LEAST_KEY = tl.constexpr((-(2**31) + 1) << 32)
"""Below every element, above what is none."""
PAIRS = tl.constexpr(1024)
"""Pairs of keys that are compared at once: eight a thread of four warps."""


@triton.jit
def sort_order(value):
    """The order i32 of values f32, above NO_ORDER: NaN as -inf, -0.0 as 0.0."""
    value = tl.where(value == value, value, float("-inf"))
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    # Floats order like integers, but for negative ones, whose magnitude counts down.
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def order_value(order):
    """The value f32 of an order."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def joined(order, place):
    """The keys i64 of orders and places."""
    return (order.to(tl.int64) << 32) | (place.to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def sort_key(value, index):
    """Keys i64 of values f32 at indices i32 (not negative): NaN as -inf, -0.0 as 0.0."""
    return joined(sort_order(value), 0x7FFFFFFF - index)


@triton.jit
def key_index(key):
    """The index i32 in a key; 0x7FFFFFFF for NO_KEY."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def best_of_slices(order, place, K: tl.constexpr):
    """The K largest elements of every slice of i32[X, SLICES, LANES], as i32[SLICES, LANES].

    The j-th of a slice is in lane j; what is in other lanes is none, (NO_ORDER, -1). LANES is at least K. Four slices
    of 32 lanes are what four warps have if a thread has loaded one element at a time. Then a round is two reductions of
    i32 within a warp, one instruction each since sm_80, and no warp waits for another.
    """
    lane = tl.arange(0, order.shape[2])[None, :]
    found_order = tl.full([order.shape[1], order.shape[2]], NO_ORDER, tl.int32)
    found_place = tl.full([order.shape[1], order.shape[2]], -1, tl.int32)
    for j in range(K):
        top, first = _best(order, place)
        order = tl.where((order == top[None, :, :]) & (place == first[None, :, :]), NO_ORDER, order)
        found_order = tl.where(lane == j, top, found_order)
        found_place = tl.where(lane == j, first, found_place)
    return found_order, found_place


@triton.jit
def ranked(order, place, K: tl.constexpr):
    """The first K lanes of i32[SLICES, LANES] as keys i64[SLICES * KP], and the rank i32 of each, all different.

    As many keys are compared with all others at once as a program of four warps has registers for.
    """
    KP: tl.constexpr = triton.next_power_of_2(K)
    SLICES: tl.constexpr = order.shape[0]
    LANES: tl.constexpr = order.shape[1]
    KEYS: tl.constexpr = SLICES * KP
    OTHERS: tl.constexpr = min(KEYS, max(KP, PAIRS // KEYS))
    keys = tl.reshape(joined(order, place), [SLICES * LANES])
    member = tl.arange(0, KEYS)
    key = tl.gather(keys, member // KP * LANES + member % KP, 0)
    rank = tl.zeros([KEYS], tl.int32)
    for start in range(0, KEYS, OTHERS):
        at = start + tl.arange(0, OTHERS)
        other = tl.gather(keys, at // KP * LANES + at % KP, 0)
        first = (other[None, :] == key[:, None]) & (at[None, :] < member[:, None])
        rank += tl.sum(((other[None, :] > key[:, None]) | first).to(tl.int32), axis=1)
    return key, rank


@triton.jit
def in_order(key, rank, K: tl.constexpr):
    """The K first of ranked keys, as orders and places i32[KP], both 0 where there is none."""
    k = tl.arange(0, triton.next_power_of_2(K))
    chosen = (rank[None, :] == k[:, None]) & (k < K)[:, None] & (key >= LEAST_KEY)[None, :]
    order = tl.sum(tl.where(chosen, (key >> 32).to(tl.int32)[None, :], 0), axis=1)
    return order, tl.sum(tl.where(chosen, (key & 0x7FFFFFFF).to(tl.int32)[None, :], 0), axis=1)


@triton.jit
def insert_best(order, place, best_order, best_place):
    """The elements of i32[X, SLICES, LANES] that are better than a slice's worst, i32[SLICES, LANES], in its place.

    A round takes the best element of every slice and waits for all slices, so this is for few elements that are better
    than those found before. What was found has no two equal elements; a lane with the largest values keeps them.
    """
    worst, last = _worst(best_order, best_place)
    order = tl.where(_above(order, place, worst, last), order, NO_ORDER)
    left = tl.max(order)
    while left > NO_ORDER:
        top, first = _best(order, place)
        taken = (top > NO_ORDER) & (best_order == worst) & (best_place == last)
        best_order = tl.where(taken, top, best_order)
        best_place = tl.where(taken, first, best_place)
        worst, last = _worst(best_order, best_place)
        better = _above(order, place, worst, last) & ((order != top[None, :, :]) | (place != first[None, :, :]))
        order = tl.where(better, order, NO_ORDER)
        left = tl.max(order)
    return best_order, best_place


@triton.jit
def _best(order, place):
    # The best element of every slice of [X, SLICES, LANES], as [SLICES, 1].
    top = tl.max(tl.max(order, axis=0), axis=1)[:, None]
    return top, tl.max(tl.max(tl.where(order == top[None, :, :], place, -1), axis=0), axis=1)[:, None]


@triton.jit
def _worst(order, place):
    # The worst element of every slice of [SLICES, LANES], as [SLICES, 1].
    worst = tl.min(order, axis=1)[:, None]
    return worst, tl.min(tl.where(order == worst, place, 0x7FFFFFFF), axis=1)[:, None]


@triton.jit
def _above(order, place, worst, last):
    # Which elements of [X, SLICES, LANES] are better than one of their slice, [SLICES, 1].
    return (order > worst[None, :, :]) | ((order == worst[None, :, :]) & (place > last[None, :, :]))
