"""A head of the vocabulary: products of hidden rows with its weights, reduced where they are computed.

The head has V entries with W weights each; a part has PART entries that follow each other, the last parts fewer or
none. A program takes all rows with BN entries at a time, BM rows with them, and reads BK weights of each entry at a
time. So all rows share what is read of the head, up to BM of them. A kernel has tiles of 16 rows to those of its
largest batch, and a launch takes the smallest that hold its rows. Sums are of f32 and have one order, whatever the
number of rows. Rows have 8 bits where weights have, as `halves.py` makes them: sums of i8 are whole numbers, and what
one is worth, of the row and of the entry, multiplies the sum.

Records are those of shard.py, with parts in place of ranks: i64[parts, rows, words]. Rules of values are those of
argmax.py and topk.py: NaN counts as -inf and is told, -0.0 == 0.0, the lowest of equal entries is first.
"""

import triton
import triton.language as tl

from .argmax import first_of_largest
from .best import NO_KEY, NO_ORDER, joined, sort_order
from .shards import mass_word
from .topk import exp_below

NO_ENTRY = tl.constexpr(0x7FFFFFFF)
"""Above every entry."""
ABOVE_KEYS = tl.constexpr(0x7FFFFFFFFFFFFFFF)
ROUGH = tl.constexpr(64)
"""Products of e4m3 that a GPU may add with fewer bits than f32 has: as many as the least tile has of a sum."""


@triton.jit
def head_tile(
    states_ptr,
    low_ptr,
    worth_ptr,
    weight_ptr,
    scale_ptr,
    first_entry,
    end,
    first_row,
    rows,
    W: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """Logits f32[BN, BM] of entries from the first one to `end`, and of rows from the first; others have any."""
    n, m, k = tl.arange(0, BN), tl.arange(0, BM), tl.arange(0, BK)
    inside = (first_entry + n < end)[:, None]
    given = (first_row + m < rows)[None, :]
    # 64-bit: V * W passes 2**31. Within a tile, offsets of 32 bits take half the registers.
    wide = tl.full([], W, tl.int64)
    weights_ptr = (weight_ptr + first_entry * wide) + (n[:, None] * W + k[None, :])
    place = m[None, :] * W + k[:, None]
    rows_ptr = (states_ptr + first_row * wide) + place
    whole: tl.constexpr = weight_ptr.dtype.element_ty == tl.int8
    logits = tl.zeros([BN, BM], tl.int32 if whole else tl.float32)
    if scale_ptr is not None:
        lows_ptr = (low_ptr + first_row * wide) + place
        lows = logits
    for at in range(0, W, BK):
        if W % BK == 0:
            here, there = inside, given
        else:
            here, there = inside & (at + k < W)[None, :], given & (at + k < W)[:, None]
        weights = tl.load(weights_ptr + at, mask=here, other=0.0)
        states = tl.load(rows_ptr + at, mask=there, other=0.0)
        if scale_ptr is None:
            logits = tl.dot(weights, states, logits, input_precision="ieee")
        else:
            lower = tl.load(lows_ptr + at, mask=there, other=0.0)
            if whole:
                logits = tl.dot(weights, states, logits, out_dtype=tl.int32)
                lows = tl.dot(weights, lower, lows, out_dtype=tl.int32)
            else:
                logits = tl.dot(weights, states, logits, max_num_imprecise_acc=ROUGH)
                lows = tl.dot(weights, lower, lows, max_num_imprecise_acc=ROUGH)
    if scale_ptr is not None:
        if whole:
            logits = logits.to(tl.float32) * 256.0 + lows.to(tl.float32)
        else:
            logits += lows
        logits *= tl.load(worth_ptr + first_row + m, mask=first_row + m < rows, other=0.0)[None, :]
        logits *= tl.load(scale_ptr + first_entry + n, mask=first_entry + n < end, other=0.0)[:, None]
    return logits


@triton.jit
def head_parts(
    states_ptr,
    low_ptr,
    worth_ptr,
    weight_ptr,
    scale_ptr,
    result_ptr,
    program,
    programs,
    rows,
    V: tl.constexpr,
    W: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    WORDS: tl.constexpr,
    BN: tl.constexpr,
    MOST: tl.constexpr,
    BK: tl.constexpr,
):
    """Store what the parts of one of several programs are asked for, with tiles of at most MOST rows.

    Tiles have BK weights of each entry, but those of 128 rows, which have half as many.
    """
    if MOST > 16 and rows * 2 <= MOST:
        head_parts(
            states_ptr,
            low_ptr,
            worth_ptr,
            weight_ptr,
            scale_ptr,
            result_ptr,
            program,
            programs,
            rows,
            V,
            W,
            PARTS,
            PART,
            WORDS,
            BN,
            MOST // 2,
            BK,
        )
    else:
        parts_of_tiles(
            states_ptr,
            low_ptr,
            worth_ptr,
            weight_ptr,
            scale_ptr,
            result_ptr,
            program,
            programs,
            rows,
            V,
            W,
            PARTS,
            PART,
            WORDS,
            BN,
            MOST,
            BK if MOST <= 64 else BK // 2,
        )


@triton.jit
def parts_of_tiles(
    states_ptr,
    low_ptr,
    worth_ptr,
    weight_ptr,
    scale_ptr,
    result_ptr,
    program,
    programs,
    rows,
    V: tl.constexpr,
    W: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    WORDS: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """Store a part's logits where WORDS is 0, else its record: of the argmax (1), or of the WORDS - 1 best entries."""
    for part in range(program, PARTS, programs):
        if WORDS == 0:
            logits_part(
                states_ptr,
                low_ptr,
                worth_ptr,
                weight_ptr,
                scale_ptr,
                result_ptr,
                part,
                rows,
                V,
                W,
                PART,
                BN,
                BM,
                BK,
            )
        elif WORDS == 1:
            argmax_part(
                states_ptr,
                low_ptr,
                worth_ptr,
                weight_ptr,
                scale_ptr,
                result_ptr,
                part,
                rows,
                V,
                W,
                PART,
                BN,
                BM,
                BK,
            )
        else:
            topk_part(
                states_ptr,
                low_ptr,
                worth_ptr,
                weight_ptr,
                scale_ptr,
                result_ptr,
                part,
                rows,
                V,
                W,
                PART,
                WORDS - 1,
                BN,
                BM,
                BK,
            )


@triton.jit
def without_nan(logits, inside, nan):
    """Logits that are -inf for NaN and where no entry is, and i32[BM]: 1 for the rows with NaN here or before."""
    nan = tl.maximum(nan, tl.max((inside & (logits != logits)).to(tl.int32), axis=0))
    return tl.where(inside & (logits == logits), logits, float("-inf")), nan


@triton.jit
def logits_part(
    states_ptr,
    low_ptr,
    worth_ptr,
    weight_ptr,
    scale_ptr,
    logits_ptr,
    part,
    rows,
    V: tl.constexpr,
    W: tl.constexpr,
    PART: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """Store the logits f32[rows, V] of the entries of a part."""
    end = tl.minimum(part * PART + PART, V)
    for first in range(0, rows, BM):
        row = first + tl.arange(0, BM)
        for at in range(part * PART, end, BN):
            entry = at + tl.arange(0, BN)
            x = head_tile(states_ptr, low_ptr, worth_ptr, weight_ptr, scale_ptr, at, end, first, rows, W, BN, BM, BK)
            place = row[None, :].to(tl.int64) * V + entry[:, None]
            tl.store(logits_ptr + place, x, mask=(entry < end)[:, None] & (row < rows)[None, :])


@triton.jit
def argmax_part(
    states_ptr,
    low_ptr,
    worth_ptr,
    weight_ptr,
    scale_ptr,
    records_ptr,
    part,
    rows,
    V: tl.constexpr,
    W: tl.constexpr,
    PART: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """Store what a part knows of the argmax of all rows."""
    end = tl.minimum(part * PART + PART, V)
    for first in range(0, rows, BM):
        row = first + tl.arange(0, BM)
        best = tl.full([BM], float("-inf"), tl.float32)
        index = tl.zeros([BM], tl.int32) + tl.where(part * PART < V, part * PART, NO_ENTRY)
        nan = tl.zeros([BM], tl.int32)
        for at in range(part * PART, end, BN):
            entry = at + tl.arange(0, BN)
            x = head_tile(states_ptr, low_ptr, worth_ptr, weight_ptr, scale_ptr, at, end, first, rows, W, BN, BM, BK)
            inside = (entry < end)[:, None]
            x, nan = without_nan(x, inside, nan)
            top, lowest = first_of_largest(x, entry[:, None], 0)
            index = tl.where(top > best, lowest, index)
            best = tl.maximum(best, top)
        word = (sort_order(best).to(tl.int64) << 32) | ((0x7FFFFFFF - index).to(tl.int64) << 1) | nan
        tl.store(records_ptr + (part * rows + row), word, mask=row < rows)


@triton.jit
def topk_part(
    states_ptr,
    low_ptr,
    worth_ptr,
    weight_ptr,
    scale_ptr,
    records_ptr,
    part,
    rows,
    V: tl.constexpr,
    W: tl.constexpr,
    PART: tl.constexpr,
    K: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """Store what a part knows of the K most probable entries of all rows, which are in no order."""
    end = tl.minimum(part * PART + PART, V)
    lane = tl.arange(0, triton.next_power_of_2(K))[:, None]
    for first in range(0, rows, BM):
        row = first + tl.arange(0, BM)
        # Different ones, so that one replaces another; none replaces those behind the first K.
        least = tl.where(lane < K, joined(tl.full(lane.shape, NO_ORDER, tl.int32), lane), ABOVE_KEYS)
        keys = least + tl.zeros([triton.next_power_of_2(K), BM], tl.int64)
        best = tl.full([BM], float("-inf"), tl.float32)
        total = tl.zeros([BM], tl.float32)
        nan = tl.zeros([BM], tl.int32)
        for at in range(part * PART, end, BN):
            entry = at + tl.arange(0, BN)
            x = head_tile(states_ptr, low_ptr, worth_ptr, weight_ptr, scale_ptr, at, end, first, rows, W, BN, BM, BK)
            inside = (entry < end)[:, None]
            x, nan = without_nan(x, inside, nan)
            top = tl.maximum(best, tl.max(x, axis=0))
            e = tl.where(inside, exp_below(x, top[None, :] + tl.zeros([BN, BM], tl.float32)), 0.0)
            total = total * exp_below(best, top) + tl.sum(e, axis=0)
            best = top
            order, place = tl.where(inside, sort_order(x), NO_ORDER), 0x7FFFFFFF - entry[:, None]
            for _ in range(K):
                # Two reductions of 32 bits take half the registers that one of 64 bits takes. A last tile may have
                # fewer entries than K. Then what is none is kept several times, and nothing else is after it.
                largest = tl.max(order, axis=0)[None, :]
                foremost = tl.max(tl.where(order == largest, place, -1), axis=0)[None, :]
                larger, worst = joined(largest, foremost), tl.min(keys, axis=0)[None, :]
                keys = tl.where((keys == worst) & (larger > worst), larger, keys)
                order = tl.where(place == foremost, NO_ORDER, order)
        base = records_ptr + (part * rows + row) * (K + 1)
        keys = tl.where((keys >> 32) == NO_ORDER, NO_KEY, keys)
        tl.store(base[None, :] + lane, keys, mask=(lane < K) & (row < rows)[None, :])
        tl.store(base + K, mass_word(best, tl.where(nan != 0, -total, total)), mask=row < rows)
