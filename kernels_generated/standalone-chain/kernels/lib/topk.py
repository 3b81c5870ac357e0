"""Softmax top-k over a vocabulary that several programs share: scan a chunk, arrive, combine.

The rule: the K largest values, lowest index first on ties; NaN counts as -inf; -0.0 == 0.0. p is the f32
softmax over the whole row, in which equal infinities share; a row of only NaN and -inf has the indices 0 to
K-1 and p 0. A row is bad if it holds NaN or its largest value is not finite. V must be at least K.

How a kernel uses it, with `slot = row * SPLITS + chunk` and partials i64[slots, K], f32[slots], f32[slots]:
    top, mass = scan_topk(row_ptr, row, chunk, chunks, key_ptr + slot * K, PROLOGUE, operands, K, V, BLOCK)
    if arrive(max_ptr, sum_ptr, slot, top, mass, arrivals_ptr, expected):
        p, index, bad = combine_topk(key_ptr, max_ptr, sum_ptr, first_slot, chunks, ROWS, K, SPLITS)

An element is a key i64: the order of its value in the upper half, the complement of its index in the lower
half. One integer maximum gives the largest value with the lowest index, and no two keys are equal. NO_KEY is
below every element.

Chunks are those of argmax.py, and so are `arrive` and `gather`. That a chunk held NaN travels to the last
arriver in the sign of its sum.
"""

import triton
import triton.language as tl

from .argmax import gather

NO_KEY = tl.constexpr(-(2**63))
LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest finite f32."""
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def sort_key(value, index):
    """Keys i64 of values f32 at indices i32 (not negative): NaN as -inf, -0.0 as 0.0."""
    value = tl.where(value == value, value, float("-inf"))
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    # Floats order like integers, but for negative ones, whose magnitude counts down.
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (order.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def key_value(key):
    """The value f32 in a key."""
    order = (key >> 32).to(tl.int32)
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def key_index(key):
    """The index i32 in a key; 0x7FFFFFFF for NO_KEY."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _fold(x, block, best, best_block, total):
    # One tile into the running maximum, its block, and the sum of exp(x - maximum), with one exp per element.
    # NaN makes the sum NaN for good, and so do two +inf; `x > best` is false for both.
    better = x > best
    e = tl.exp2(tl.abs(x - best) * -LOG2_E)
    total = tl.where(better, tl.fma(total, e, 1.0), total + e)
    return tl.where(better, x, best), tl.where(better, block, best_block), total


@triton.jit
def scan_fast(row_ptr, row, first, stop, PROLOGUE: tl.constexpr, operands, V: tl.constexpr, BLOCK: tl.constexpr):
    """Per lane: the largest value above LOWEST, its block, the sum of exp(x - largest); a NaN sum is wrong.

    Starting above -inf makes every -inf add exp(-inf) = 0 without a comparison.
    """
    BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    WHOLE: tl.constexpr = V // BLOCK
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], LOWEST, tl.float32)
    best_block = tl.zeros([BLOCK], tl.int32)
    total = tl.zeros([BLOCK], tl.float32)
    # A block is loaded while the one before it is folded. Whole blocks carry no mask of elements; the one partial
    # block, if there is one, is peeled off below.
    last = tl.minimum(stop, WHOLE)
    ahead = tl.load(row_ptr + (first * BLOCK + lane), mask=first < last)
    for block in range(first, last):
        x = PROLOGUE(ahead.to(tl.float32), block * BLOCK + lane, row, operands)
        ahead = tl.load(row_ptr + ((block + 1) * BLOCK + lane), mask=block + 1 < last)
        best, best_block, total = _fold(x, block, best, best_block, total)
    # Two conditions, not one: the first is decided while compiling, and takes this code away when V is whole.
    if WHOLE < BLOCKS:
        if (first <= WHOLE) & (stop > WHOLE):
            offset = WHOLE * BLOCK + lane
            x = tl.load(row_ptr + offset, mask=offset < V, other=float("-inf")).to(tl.float32)
            x = tl.where(offset < V, PROLOGUE(x, tl.minimum(offset, V - 1), row, operands), float("-inf"))
            best, best_block, total = _fold(x, WHOLE, best, best_block, total)
    return best, best_block, total


@triton.jit
def scan_exactly(row_ptr, row, first, stop, PROLOGUE: tl.constexpr, operands, V: tl.constexpr, BLOCK: tl.constexpr):
    """What `scan_fast` gives, right for all values, and nan i32[BLOCK], whether the lane held NaN.

    A lane of only NaN and -inf has the value -inf at its first index.
    """
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_block = tl.zeros([BLOCK], tl.int32) + first
    total = tl.zeros([BLOCK], tl.float32)
    nan = tl.zeros([BLOCK], tl.int32)
    for block in range(first, tl.minimum(stop, (V + BLOCK - 1) // BLOCK)):
        offset = block * BLOCK + lane
        real = offset < V
        x = tl.load(row_ptr + offset, mask=real, other=float("-inf")).to(tl.float32)
        x = tl.where(real, PROLOGUE(x, tl.minimum(offset, V - 1), row, operands), float("-inf"))
        nan = tl.where(x == x, nan, 1)
        x = tl.where(x == x, x, float("-inf"))
        better = x > best
        # The difference of equal infinities would be NaN.
        e = tl.where(x == best, 1.0, tl.exp(-tl.abs(tl.where(x == best, 0.0, x) - tl.where(x == best, 0.0, best))))
        total = tl.where(better, tl.fma(total, e, 1.0), total + tl.where(real, e, 0.0))
        best = tl.where(better, x, best)
        best_block = tl.where(better, block, best_block)
    return best, best_block, total, nan


@triton.jit
def rescaled(total, best, top):
    """total * exp(best - top) with best <= top; equal infinities differ by 0."""
    return total * tl.exp(tl.where(best == top, 0.0, best) - tl.where(best == top, 0.0, top))


@triton.jit
def _columns_of_largest(key, K: tl.constexpr, BLOCK: tl.constexpr):
    """The lanes i32[next power of 2 of K] of the K largest keys i64[BLOCK], -1 where there is none."""
    place = tl.arange(0, triton.next_power_of_2(K))
    columns = tl.full([triton.next_power_of_2(K)], -1, tl.int32)
    for j in range(K):
        winner = tl.max(key, axis=0)
        key = tl.where(key == winner, NO_KEY, key)
        lane = tl.where(winner == NO_KEY, -1, key_index(winner) % BLOCK)
        columns = tl.where(place == j, lane, columns)
    return columns


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
):
    """Scan chunk `chunk` of `chunks` of the row T[V] at `row_ptr`; its K best keys go to i64[K] at `key_ptr`.

    Gives (the largest value f32, the sum f32 of exp(x - largest)), the sum negative if the chunk held NaN. For
    `arrive`. A chunk with fewer than K elements stores NO_KEY for the rest.

    Every lane keeps its best element only. The K best of the chunk are all in the K lanes with the best
    elements, so those lanes' columns are read again, K of BLOCK. Logits are read a second time as a whole only in
    a chunk that holds NaN or several +inf, or so few values above LOWEST that they are in fewer than K lanes.
    """
    BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    TILES: tl.constexpr = triton.next_power_of_2(BLOCKS)
    lane = tl.arange(0, BLOCK)
    per = (BLOCKS + chunks - 1) // chunks
    first = chunk * per
    stop = first + per
    best, best_block, total = scan_fast(row_ptr, row, first, stop, PROLOGUE, operands, V, BLOCK)
    # Lanes that have a best element; one NaN outweighs all of them.
    found = tl.sum(tl.where(total == total, (best > LOWEST).to(tl.int32), -BLOCK), axis=0)
    sign = 1.0
    if found < K:
        best, best_block, total, nan = scan_exactly(row_ptr, row, first, stop, PROLOGUE, operands, V, BLOCK)
        sign = tl.where(tl.max(nan, axis=0) != 0, -1.0, 1.0)
    top = tl.max(best, axis=0)
    mass = tl.sum(rescaled(total, best, top), axis=0) * sign
    key = tl.where(first * BLOCK + lane < V, sort_key(best, best_block * BLOCK + lane), NO_KEY)
    columns = _columns_of_largest(key, K, BLOCK)
    block = first + tl.arange(0, TILES)
    index = columns[:, None] + block[None, :] * BLOCK
    inside = (columns >= 0)[:, None] & (block < stop)[None, :] & (index < V)
    x = tl.load(row_ptr + index, mask=inside, other=0.0).to(tl.float32)
    x = PROLOGUE(x, tl.where(inside, index, 0), row, operands)
    keys = tl.where(inside, sort_key(x, index), NO_KEY)
    for j in range(K):
        winner = tl.max(keys)
        keys = tl.where(keys == winner, NO_KEY, keys)
        tl.store(key_ptr + j, winner)
    return top, mass


@triton.jit
def combine_topk(
    key_ptr,
    max_ptr,
    sum_ptr,
    first_slot,
    chunks,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The partials of ROWS rows, row r at the slots first_slot + r * SPLITS, as p, index and bad of every row.

    p f32[R, KP], index i32[R, KP], both by descending probability, bad i1[R]; R and KP are ROWS and K rounded up
    to powers of 2. Rows and places past ROWS and K hold p 0, index 0, bad False. Only after `arrive` gave true.
    """
    R: tl.constexpr = triton.next_power_of_2(ROWS)
    KP: tl.constexpr = triton.next_power_of_2(K)
    row = tl.arange(0, R)
    chunk = tl.arange(0, SPLITS)
    slots = first_slot + row[:, None] * SPLITS + chunk[None, :]
    present = (row < ROWS)[:, None] & (chunk < chunks)[None, :]
    tops, masses = gather(max_ptr, sum_ptr, slots, present)
    # All keys of a row side by side: KP places of each chunk.
    lane = tl.arange(0, SPLITS * KP)
    at = (first_slot + row[:, None] * SPLITS + (lane // KP)[None, :]) * K + (lane % KP)[None, :]
    there = (row < ROWS)[:, None] & ((lane // KP < chunks) & (lane % KP < K))[None, :]
    keys = tl.load(key_ptr + at, mask=there, other=NO_KEY, cache_modifier=".cg")
    top = tl.max(tops, axis=1)
    bad = (row < ROWS) & ((tl.abs(top) == float("inf")) | (tl.min(masses, axis=1) < 0.0))
    mass = tl.sum(rescaled(tl.abs(masses), tops, top[:, None]), axis=1)
    place = tl.arange(0, KP)
    best = tl.full([R, KP], NO_KEY, tl.int64)
    for j in range(K):
        winner = tl.max(keys, axis=1)
        keys = tl.where(keys == winner[:, None], NO_KEY, keys)
        best = tl.where((place == j)[None, :], winner[:, None], best)
    real = (row < ROWS)[:, None] & (place < K)[None, :]
    value, index = key_value(best), key_index(best)
    weight = tl.exp(tl.where(value == top[:, None], 0.0, value) - tl.where(value == top[:, None], 0.0, top[:, None]))
    p = tl.where(real & (top > float("-inf"))[:, None], weight / mass[:, None], 0.0)
    return p, tl.where(real, index, 0), bad
