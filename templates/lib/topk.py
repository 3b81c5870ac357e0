"""Softmax top-k over a vocabulary that several programs share: scan a chunk, arrive, combine.

The rule: the K largest values, lowest index first on ties; NaN counts as -inf; -0.0 == 0.0. p is the f32
softmax over the whole row, in which equal infinities share; a row of only NaN and -inf has the indices 0 to
K-1 and p 0. A row is bad if it holds NaN or its largest value is not finite. V must be at least K.

How a kernel uses it, with `slot = row * SPLITS + chunk` and partials i64[slots, K], f32[slots], f32[slots]:
    top, mass = scan_topk(row_ptr, row, chunk, chunks, key_ptr + slot * K, PROLOGUE, operands, K, V, BLOCK, ...)
    if arrive(max_ptr, sum_ptr, slot, top, mass, arrivals_ptr, expected):
        p, index, bad = combine_topk(row_ptr, key_ptr, max_ptr, sum_ptr, first_row, chunks, PROLOGUE, ...)

Elements and their keys are those of best.py.

Chunks are those of argmax.py, and so are `arrive` and `gather`. That a chunk held NaN travels to the last
arriver in the sign of its sum.
"""

import triton
import triton.language as tl

from .argmax import gather
from .best import (
    LEAST_KEY,
    NO_KEY,
    NO_ORDER,
    best_of_slices,
    in_order,
    insert_best,
    order_value,
    ranked,
    sort_order,
)

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest finite f32."""
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _fold(x, block, best, best_block, total, GROUP: tl.constexpr):
    # One tile into every group's running maximum, its block, and the sum of exp(x - maximum). NaN makes the sum NaN for
    # good, and so does +inf where a group has more than one element; `>` is false for NaN.
    if GROUP == 1:
        # With one exp per element: either of the two terms is 1.
        better = x > best
        e = tl.exp2(tl.abs(x - best) * -LOG2_E)
        total = tl.where(better, tl.fma(total, e, 1.0), total + e)
        return tl.where(better, x, best), tl.where(better, block, best_block), total
    x = tl.reshape(x, [best.shape[0], GROUP])
    top = tl.max(x, axis=1)
    better = top > best
    peak = tl.where(better, top, best)
    total = total * tl.exp2((best - peak) * LOG2_E) + tl.sum(tl.exp2((x - peak[:, None]) * LOG2_E), axis=1)
    return peak, tl.where(better, block, best_block), total


@triton.jit
def scan_fast(
    row_ptr,
    row,
    first,
    stop,
    PROLOGUE: tl.constexpr,
    operands,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Per group of lanes: the largest value above LOWEST, its block, the sum of exp(x - largest); a NaN sum is wrong.

    Starting above -inf makes every -inf add exp(-inf) = 0 without a comparison.
    """
    BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    WHOLE: tl.constexpr = V // BLOCK
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK // GROUP], LOWEST, tl.float32)
    best_block = tl.zeros([BLOCK // GROUP], tl.int32)
    total = tl.zeros([BLOCK // GROUP], tl.float32)
    # A block is loaded while the one before it is folded. Whole blocks carry no mask of elements; the one partial
    # block, if there is one, is peeled off below.
    last = tl.minimum(stop, WHOLE)
    ahead = tl.load(row_ptr + (first * BLOCK + lane), mask=first < last)
    for block in range(first, last):
        x = PROLOGUE(ahead.to(tl.float32), block * BLOCK + lane, row, operands)
        ahead = tl.load(row_ptr + ((block + 1) * BLOCK + lane), mask=block + 1 < last)
        best, best_block, total = _fold(x, block, best, best_block, total, GROUP)
    # Two conditions, not one: the first is decided while compiling, and takes this code away when V is whole.
    if WHOLE < BLOCKS:
        if (first <= WHOLE) & (stop > WHOLE):
            offset = WHOLE * BLOCK + lane
            x = tl.load(row_ptr + offset, mask=offset < V, other=float("-inf")).to(tl.float32)
            x = tl.where(offset < V, PROLOGUE(x, tl.minimum(offset, V - 1), row, operands), float("-inf"))
            best, best_block, total = _fold(x, WHOLE, best, best_block, total, GROUP)
    return best, best_block, total


@triton.jit
def scan_exactly(
    row_ptr,
    row,
    first,
    stop,
    PROLOGUE: tl.constexpr,
    operands,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """What `scan_fast` gives, right for all values, and nan i32[groups], whether the group held NaN.

    A group of only NaN and -inf has the value -inf in its first block.
    """
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK // GROUP], float("-inf"), tl.float32)
    best_block = tl.zeros([BLOCK // GROUP], tl.int32) + first
    total = tl.zeros([BLOCK // GROUP], tl.float32)
    nan = tl.zeros([BLOCK // GROUP], tl.int32)
    for block in range(first, tl.minimum(stop, (V + BLOCK - 1) // BLOCK)):
        offset = block * BLOCK + lane
        real = offset < V
        x = tl.load(row_ptr + offset, mask=real, other=float("-inf")).to(tl.float32)
        x = tl.where(real, PROLOGUE(x, tl.minimum(offset, V - 1), row, operands), float("-inf"))
        if GROUP == 1:
            nan = tl.where(x == x, nan, 1)
            x = tl.where(x == x, x, float("-inf"))
            better = x > best
            e = exp_below(tl.minimum(x, best), tl.maximum(x, best))
            total = tl.where(better, tl.fma(total, e, 1.0), total + tl.where(real, e, 0.0))
            best = tl.where(better, x, best)
        else:
            x = tl.reshape(x, [BLOCK // GROUP, GROUP])
            real = tl.reshape(real, [BLOCK // GROUP, GROUP])
            nan = nan | tl.max((x != x).to(tl.int32), axis=1)
            x = tl.where(x == x, x, float("-inf"))
            top = tl.max(x, axis=1)
            better = top > best
            peak = tl.where(better, top, best)
            e = tl.where(real, exp_below(x, peak[:, None]), 0.0)
            total = total * exp_below(best, peak) + tl.sum(e, axis=1)
            best = peak
        best_block = tl.where(better, block, best_block)
    return best, best_block, total, nan


@triton.jit
def exp_below(x, top):
    """exp(x - top) with x <= top; equal infinities differ by 0."""
    return tl.exp(tl.where(x == top, 0.0, x) - tl.where(x == top, 0.0, top))


@triton.jit
def rescaled(total, best, top):
    """total * exp(best - top) with best <= top; equal infinities differ by 0."""
    return total * exp_below(best, top)


@triton.jit
def best_of_groups(
    row_ptr,
    row,
    per,
    order,
    place,
    PROLOGUE: tl.constexpr,
    operands,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The K largest elements, as ranked keys, of what K groups of lanes have seen.

    A group is given by an element of it, as `in_order` does, and has seen the `per` blocks of the chunk that this
    element is in. COLUMN elements of each group are read at once, which is all of a short chunk. In a long one, which
    has K groups, those are looked for that are not below the elements given.
    """
    KP: tl.constexpr = triton.next_power_of_2(K)
    COLUMN: tl.constexpr = 64
    LANES: tl.constexpr = max(32, KP)
    SLICES: tl.constexpr = min(4, KP * COLUMN // LANES)
    shape: tl.constexpr = [KP * COLUMN // (SLICES * LANES), SLICES, LANES]
    lane = tl.zeros([SLICES, LANES], tl.int32) + tl.arange(0, LANES)[None, :]
    k = tl.arange(0, KP)
    least = tl.min(tl.where(k < K, order, 0x7FFFFFFF), axis=0)
    index = 0x7FFFFFFF - place
    first = index // BLOCK // per * per * BLOCK + index % BLOCK // GROUP * GROUP
    if per <= COLUMN // GROUP:
        orders, places = _column(row_ptr, row, index, first, 0, per, PROLOGUE, operands, V, BLOCK, GROUP, COLUMN)
        best_order, best_place = best_of_slices(tl.reshape(orders, shape), tl.reshape(places, shape), K)
    else:
        # Lanes from K on hold what nothing is better than.
        best_order = tl.where(lane < K, NO_ORDER, 0x7FFFFFFF)
        best_place = tl.where(lane < K, -1 - lane, 0x7FFFFFFF)
        for tile in range(0, per, COLUMN // GROUP):
            orders, places = _column(row_ptr, row, index, first, tile, per, PROLOGUE, operands, V, BLOCK, GROUP, COLUMN)
            orders = tl.where(orders < least, NO_ORDER, orders)
            orders, places = tl.reshape(orders, shape), tl.reshape(places, shape)
            best_order, best_place = insert_best(orders, places, best_order, best_place)
    real = (lane < K) & (best_order > NO_ORDER)
    return ranked(tl.where(real, best_order, NO_ORDER), tl.where(real, best_place, -1), K)


@triton.jit
def _column(
    row_ptr,
    row,
    index,
    first,
    tile,
    per,
    PROLOGUE: tl.constexpr,
    operands,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    COLUMN: tl.constexpr,
):
    # The elements [groups, COLUMN] of what groups have seen in the blocks from `tile` on of their chunk, which starts
    # at `first`. Neighbours are of different blocks: a thread that loaded neighbours at once would have elements of one
    # slice that others of its warp have not.
    element = tl.arange(0, COLUMN)[None, :]
    block = tile + element % (COLUMN // GROUP)
    at = first[:, None] + block * BLOCK + element // (COLUMN // GROUP)
    inside = (index < V)[:, None] & (block < per) & (at < V)
    x = tl.load(row_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x = PROLOGUE(x, tl.where(inside, at, 0), row, operands)
    return tl.where(inside, sort_order(x), NO_ORDER), tl.where(inside, 0x7FFFFFFF - at, -1)


@triton.jit
def scan_topk(
    row_ptr,
    row,
    chunk,
    chunks,
    key_ptr,
    PROLOGUE: tl.constexpr,
    operands,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    LATE: tl.constexpr,
):
    """Scan chunk `chunk` of `chunks` of the row T[V] at `row_ptr`; its K best keys go to i64[K] at `key_ptr`.

    Gives (the largest value f32, the sum f32 of exp(x - largest)), the sum negative if the chunk held NaN. For
    `arrive`. A chunk with fewer than K elements stores NO_KEY for the rest.

    GROUP lanes that follow each other keep their best element only. The K best of the chunk are all in the K groups
    with the best elements, so what those groups have seen is read again, K * GROUP of every BLOCK. If LATE, that is
    left to `combine_topk`, once for the row, and the keys are those of groups. Logits are read a second time as a whole
    only in a chunk that holds NaN or +inf, or so few values above LOWEST that they are in fewer than K groups.

    Of two groups with equal values the one whose block comes first has the lower index, then the one whose lanes do, so
    a group's key may have the index of its first lane. V is a multiple of GROUP.
    """
    KP: tl.constexpr = triton.next_power_of_2(K)
    BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    GROUPS: tl.constexpr = BLOCK // GROUP
    LANES: tl.constexpr = min(GROUPS, max(32, KP))
    SLICES: tl.constexpr = min(4, GROUPS // LANES)
    lane = tl.arange(0, GROUPS) * GROUP
    per = (BLOCKS + chunks - 1) // chunks
    first = chunk * per
    stop = first + per
    best, best_block, total = scan_fast(row_ptr, row, first, stop, PROLOGUE, operands, V, BLOCK, GROUP)
    # Groups that have a best element; one NaN outweighs all of them.
    found = tl.sum(tl.where(total == total, (best > LOWEST).to(tl.int32), -BLOCK), axis=0)
    sign = 1.0
    if found < K:
        best, best_block, total, nan = scan_exactly(row_ptr, row, first, stop, PROLOGUE, operands, V, BLOCK, GROUP)
        sign = tl.where(tl.max(nan, axis=0) != 0, -1.0, 1.0)
    top = tl.max(best, axis=0)
    mass = tl.sum(rescaled(total, best, top), axis=0) * sign
    real = first * BLOCK + lane < V
    shape: tl.constexpr = [GROUPS // (SLICES * LANES), SLICES, LANES]
    orders = tl.reshape(tl.where(real, sort_order(best), NO_ORDER), shape)
    places = tl.reshape(tl.where(real, 0x7FFFFFFF - (best_block * BLOCK + lane), -1), shape)
    order, place = best_of_slices(orders, places, K)
    key, rank = ranked(order, place, K)
    if not LATE:
        order, place = in_order(key, rank, K)
        key, rank = best_of_groups(row_ptr, row, per, order, place, PROLOGUE, operands, K, V, BLOCK, GROUP)
    tl.store(key_ptr + rank, tl.where(key < LEAST_KEY, NO_KEY, key), mask=rank < K)
    return top, mass


@triton.jit
def combine_topk(
    row_ptr,
    key_ptr,
    max_ptr,
    sum_ptr,
    first_row,
    chunks,
    PROLOGUE: tl.constexpr,
    operands,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    LATE: tl.constexpr,
):
    """The partials of the ROWS rows from `first_row` on, a row's at SPLITS slots, as p, index and bad of every row.

    p f32[R, KP], index i32[R, KP], both by descending probability, bad i1[R]; R and KP are ROWS and K rounded up
    to powers of 2. Rows and places past ROWS and K hold p 0, index 0, bad False. Only after `arrive` gave true.
    If LATE, there is one row, T[V] at `row_ptr`.
    """
    R: tl.constexpr = triton.next_power_of_2(ROWS)
    KP: tl.constexpr = triton.next_power_of_2(K)
    row = tl.arange(0, R)
    if R == 1:
        top, bad, mass = _mass_of_row(max_ptr, sum_ptr, first_row, chunks, SPLITS)
    else:
        chunk = tl.arange(0, SPLITS)
        slots = (first_row + row[:, None]) * SPLITS + chunk[None, :]
        present = (row < ROWS)[:, None] & (chunk < chunks)[None, :]
        tops, masses = gather(max_ptr, sum_ptr, slots, present)
        top = tl.max(tops, axis=1)
        bad = (row < ROWS) & ((tl.abs(top) == float("inf")) | (tl.min(masses, axis=1) < 0.0))
        mass = tl.sum(rescaled(tl.abs(masses), tops, top[:, None]), axis=1)
    order, place = _best_of_chunks(key_ptr, first_row, chunks, ROWS, K, SPLITS)
    if LATE:
        some = tl.maximum(chunks, 1)
        per = ((V + BLOCK - 1) // BLOCK + some - 1) // some
        order, place = tl.reshape(order, [KP]), tl.reshape(place, [KP])
        key, rank = best_of_groups(row_ptr, first_row, per, order, place, PROLOGUE, operands, K, V, BLOCK, GROUP)
        order, place = in_order(key, rank, K)
        order, place = order[None, :], place[None, :]
    k = tl.arange(0, KP)
    real = (row < ROWS)[:, None] & (k < K)[None, :]
    value, index = order_value(order), 0x7FFFFFFF - place
    weight = exp_below(value, top[:, None])
    p = tl.where(real & (top > float("-inf"))[:, None], weight / mass[:, None], 0.0)
    return p, tl.where(real, index, 0), bad


@triton.jit
def _mass_of_row(max_ptr, sum_ptr, row, chunks, SPLITS: tl.constexpr):
    # A row's largest value f32[1], whether it holds NaN or +inf, i1[1], and its sum f32[1]. They are made as scalars:
    # as a tensor of one row, all partials would be in the registers of each thread.
    chunk = tl.arange(0, SPLITS)
    tops, masses = gather(max_ptr, sum_ptr, row * SPLITS + chunk, chunk < chunks)
    top = tl.max(tops, axis=0)
    bad = (tl.abs(top) == float("inf")) | (tl.min(masses, axis=0) < 0.0)
    mass = tl.sum(rescaled(tl.abs(masses), tops, top), axis=0)
    bad = tl.full([1], bad.to(tl.int32), tl.int32) != 0  # an interpreter of 3.6 fills no tensor with an i1
    return tl.full([1], top, tl.float32), bad, tl.full([1], mass, tl.float32)


@triton.jit
def _best_of_chunks(key_ptr, first_row, chunks, ROWS: tl.constexpr, K: tl.constexpr, SPLITS: tl.constexpr):
    # Orders and places i32[R, KP] of the K best of every row, 0 where there is none. A slice, which is a warp, has all
    # keys of a row, KP places of each chunk; slices without a row have none.
    R: tl.constexpr = triton.next_power_of_2(ROWS)
    KP: tl.constexpr = triton.next_power_of_2(K)
    LANES: tl.constexpr = min(SPLITS * KP, max(32, KP))
    SLICES: tl.constexpr = max(4, R)
    member = tl.arange(0, SPLITS * KP // LANES)[:, None, None] * LANES + tl.arange(0, LANES)[None, None, :]
    row = tl.arange(0, SLICES)[None, :, None]
    # Neighbours are of different chunks, for the reason given in `best_of_groups`.
    chunk, k = member % SPLITS, member // SPLITS
    at = ((first_row + row) * SPLITS + chunk) * K + k
    there = (row < ROWS) & (chunk < chunks) & (k < K)
    keys = tl.load(key_ptr + at, mask=there, other=NO_KEY, cache_modifier=".cg")
    order, place = best_of_slices((keys >> 32).to(tl.int32), keys.to(tl.int32), K)
    none = order == NO_ORDER
    order = tl.where(none, 0, order)
    place = tl.where(none, 0, place)
    order = tl.sum(tl.sum(tl.reshape(order, [SLICES // R, R, LANES // KP, KP]), axis=2), axis=0)
    return order, tl.sum(tl.sum(tl.reshape(place, [SLICES // R, R, LANES // KP, KP]), axis=2), axis=0)
