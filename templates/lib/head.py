"""A head of the vocabulary: products of hidden rows with its weights, reduced where they are computed.

The head has V entries with W weights each; a part has PART entries that follow each other, the last parts fewer or
none. A program takes all rows with BN entries at a time, BM rows with them, and reads BK weights of each entry at a
time. So all rows share what is read of the head, up to BM of them. A kernel has tiles of 16 rows to those of its
largest batch, and a launch takes the smallest that hold its rows. Sums are of f32 and have one order, whatever the
number of rows. What a tile is stands in head_tile.py.

Records are those of shard.py, with parts in place of ranks: i64[parts, rows, words]. Rules of values are those of
argmax.py and topk.py: NaN counts as -inf and is told, -0.0 == 0.0, the lowest of equal entries is first.
"""

import triton
import triton.language as tl

from .argmax import first_of_largest
from .best import NO_KEY, NO_ORDER, joined, sort_order
from .head_tile import head_tile
from .shards import mass_word
from .topk import exp_below

NO_ENTRY = tl.constexpr(0x7FFFFFFF)
"""Above every entry."""
ABOVE_KEYS = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def head_parts(
    operands,
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
    TABLE: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """Store what the parts of one of several programs are asked for, with tiles of at most MOST rows.

    Tiles have BK weights of each entry, but those of 128 rows, which have half as many.
    """
    if MOST > 16 and rows * 2 <= MOST:
        head_parts(
            operands, result_ptr, program, programs, rows, V, W, PARTS, PART, WORDS, BN, MOST // 2, BK, TABLE, STRIDE
        )
    else:
        parts_of_tiles(
            operands,
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
            TABLE,
            STRIDE,
        )


@triton.jit
def parts_of_tiles(
    operands,
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
    TABLE: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """Store a part's logits where WORDS is 0, else its record: of the argmax (1), or of the WORDS - 1 best entries."""
    for part in range(program, PARTS, programs):
        if WORDS == 0:
            logits_part(operands, result_ptr, part, rows, V, W, PART, BN, BM, BK, TABLE, STRIDE)
        elif WORDS == 1:
            argmax_part(operands, result_ptr, part, rows, V, W, PART, BN, BM, BK, TABLE, STRIDE)
        else:
            topk_part(operands, result_ptr, part, rows, V, W, PART, WORDS - 1, BN, BM, BK, TABLE, STRIDE)


@triton.jit
def without_nan(logits, inside, nan):
    """Logits that are -inf for NaN and where no entry is, and i32[BM]: 1 for the rows with NaN here or before."""
    nan = tl.maximum(nan, tl.max((inside & (logits != logits)).to(tl.int32), axis=0))
    return tl.where(inside & (logits == logits), logits, float("-inf")), nan


@triton.jit
def logits_part(
    operands,
    logits_ptr,
    part,
    rows,
    V: tl.constexpr,
    W: tl.constexpr,
    PART: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    TABLE: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """Store the logits f32[rows, V] of the entries of a part."""
    end = tl.minimum(part * PART + PART, V)
    for first in range(0, rows, BM):
        row = first + tl.arange(0, BM)
        for at in range(part * PART, end, BN):
            entry = at + tl.arange(0, BN)
            x = head_tile(operands, at, end, first, rows, W, BN, BM, BK, TABLE, STRIDE)
            place = row[None, :].to(tl.int64) * V + entry[:, None]
            tl.store(logits_ptr + place, x, mask=(entry < end)[:, None] & (row < rows)[None, :])


@triton.jit
def argmax_part(
    operands,
    records_ptr,
    part,
    rows,
    V: tl.constexpr,
    W: tl.constexpr,
    PART: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    TABLE: tl.constexpr,
    STRIDE: tl.constexpr,
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
            x = head_tile(operands, at, end, first, rows, W, BN, BM, BK, TABLE, STRIDE)
            inside = (entry < end)[:, None]
            x, nan = without_nan(x, inside, nan)
            top, lowest = first_of_largest(x, entry[:, None], 0)
            index = tl.where(top > best, lowest, index)
            best = tl.maximum(best, top)
        word = (sort_order(best).to(tl.int64) << 32) | ((0x7FFFFFFF - index).to(tl.int64) << 1) | nan
        tl.store(records_ptr + (part * rows + row), word, mask=row < rows)


@triton.jit
def topk_part(
    operands,
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
    TABLE: tl.constexpr,
    STRIDE: tl.constexpr,
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
            x = head_tile(operands, at, end, first, rows, W, BN, BM, BK, TABLE, STRIDE)
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
