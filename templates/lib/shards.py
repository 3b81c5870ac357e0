"""A rank's part of the reductions over a sharded vocabulary: chunks, scanned by several programs, as one record.

A row of CHUNKS * CHUNK columns is cut into CHUNKS chunks, whatever the number of programs and of ranks, and each is
scanned as a row of its own, so that its sum of exponentials has one order. Sums of chunks are added as a balanced
binary tree: those of a program there, those of programs in the last one that arrives, those of ranks in merge.py.
Grid (B, ROWS * PROGRAMS): program = row * PROGRAMS + part. Partials are [B, ROWS, CHUNKS]; what a program has found in
all of its chunks replaces that of its first one. A prologue is given row * CHUNKS + chunk as the row, and columns of
the chunk. CHUNKS and PROGRAMS are powers of 2.
"""

import triton
import triton.language as tl

from .argmax import arrived, first_of_largest, gather, scan_chunk
from .best import NO_KEY, NO_ORDER, best_of_slices, insert_best, joined, sort_order
from .logprob import scan_chunk_and_sum
from .topk import exp_below, scan_topk


@triton.jit
def join_two(top0, mass0, top1, mass1):
    """Two largest values f32 with their sums of exp(x - largest) as those of both: one exponential, one fma."""
    larger = top0 >= top1
    top = tl.maximum(top0, top1)
    scale = exp_below(tl.minimum(top0, top1), top)
    return top, tl.fma(tl.where(larger, mass1, mass0), scale, tl.where(larger, mass0, mass1))


@triton.jit
def join_parts(top, mass, ROWS: tl.constexpr, PARTS: tl.constexpr, LEVELS: tl.constexpr):
    """Largest values and sums f32[ROWS, PARTS] as f32[ROWS], neighbours first; PARTS is 2**LEVELS."""
    for level in tl.static_range(LEVELS):
        top0, top1 = tl.split(tl.reshape(top, [ROWS, PARTS >> (level + 1), 2]))
        mass0, mass1 = tl.split(tl.reshape(mass, [ROWS, PARTS >> (level + 1), 2]))
        top, mass = join_two(top0, mass0, top1, mass1)
    return tl.reshape(top, [ROWS]), tl.reshape(mass, [ROWS])


@triton.jit
def mass_word(top, mass):
    """A largest value and a sum f32 as words i64."""
    lower = mass.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return (top.to(tl.int32, bitcast=True).to(tl.int64) << 32) | lower


@triton.jit
def _keys_of_parts(
    key_ptr, first, part_stride, row_stride, shift, live, ROWS: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr
):
    # Orders and places i32[X, SLICES, LANES] of the keys of PARTS parts from the first on; a row has a slice.
    R: tl.constexpr = triton.next_power_of_2(ROWS)
    KP: tl.constexpr = triton.next_power_of_2(K)
    LANES: tl.constexpr = min(PARTS * KP, max(32, KP))
    SLICES: tl.constexpr = max(4, R)
    member = tl.arange(0, PARTS * KP // LANES)[:, None, None] * LANES + tl.arange(0, LANES)[None, None, :]
    row = tl.arange(0, SLICES)[None, :, None]
    part, k = first + member % PARTS, member // PARTS
    there = live & (row < ROWS) & (k < K)
    at = row * row_stride + part * part_stride + k
    keys = tl.load(key_ptr + at, mask=there, other=NO_KEY, cache_modifier=".cg")
    order = (keys >> 32).to(tl.int32)
    return order, tl.where(order == NO_ORDER, -1, keys.to(tl.int32) - part * shift)


@triton.jit
def best_of_parts(
    key_ptr, part_stride, row_stride, shift, live, ROWS: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr
):
    """The K best keys of every row, of PARTS parts with K keys each: orders and places i32[R, KP], both 0 for none.

    Keys of a part follow each other, parts are `part_stride` apart, rows `row_stride`. Places are those of the part;
    indices of part i begin at i * `shift`. As in topk.py a slice, which is a warp, has all keys of a row. Of many parts
    some are looked at together, so that registers hold their keys.
    """
    R: tl.constexpr = triton.next_power_of_2(ROWS)
    KP: tl.constexpr = triton.next_power_of_2(K)
    SOME: tl.constexpr = min(PARTS, max(16, 128 // KP))
    order, place = _keys_of_parts(key_ptr, 0, part_stride, row_stride, shift, live, ROWS, K, SOME)
    order, place = best_of_slices(order, place, K)
    SLICES: tl.constexpr = order.shape[0]
    LANES: tl.constexpr = order.shape[1]
    if SOME < PARTS:
        # Different elements, of which those behind the first K stay where they are.
        lane = tl.arange(0, LANES)[None, :]
        place = tl.where(lane < K, tl.where(order == NO_ORDER, -1 - lane, place), 0x7FFFFFFF)
        order = tl.where(lane < K, order, 0x7FFFFFFF)
        for first in range(SOME, PARTS, SOME):
            more, at = _keys_of_parts(key_ptr, first, part_stride, row_stride, shift, live, ROWS, K, SOME)
            order, place = insert_best(more, at, order, place)
        order = tl.where(lane < K, order, NO_ORDER)
        order, place = best_of_slices(order[None, :, :], place[None, :, :], K)
    none = order == NO_ORDER
    order = tl.where(none, 0, order)
    place = tl.where(none, 0, place)
    order = tl.sum(tl.sum(tl.reshape(order, [SLICES // R, R, LANES // KP, KP]), axis=2), axis=0)
    return order, tl.sum(tl.sum(tl.reshape(place, [SLICES // R, R, LANES // KP, KP]), axis=2), axis=0)


@triton.jit
def scan_argmax_part(
    logits_ptr,
    value_ptr,
    mark_ptr,
    sum_ptr,
    arrivals_ptr,
    b,
    program,
    programs,
    PROLOGUE: tl.constexpr,
    operands,
    ROWS: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    PROGRAMS: tl.constexpr,
    LEVELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Scan the CHUNKS // PROGRAMS = 2**LEVELS chunks of a program; true in the last one of the request."""
    EACH: tl.constexpr = CHUNKS // PROGRAMS
    row = b * ROWS + program // PROGRAMS
    first = program % PROGRAMS * EACH
    # 64-bit: B * ROWS * CHUNKS * CHUNK may pass 2**31.
    row_ptr = logits_ptr + row.to(tl.int64) * (CHUNKS * CHUNK)
    slot = row * CHUNKS + first
    for chunk in range(first, first + EACH):
        at = row * CHUNKS + chunk
        if sum_ptr is None:
            value, mark = scan_chunk(row_ptr + chunk * CHUNK, at, 0, 1, PROLOGUE, operands, CHUNK, BLOCK)
        else:
            value, mark, mass = scan_chunk_and_sum(row_ptr + chunk * CHUNK, at, 0, 1, PROLOGUE, operands, CHUNK, BLOCK)
            tl.store(sum_ptr + at, mass)
        tl.store(value_ptr + at, value)
        tl.store(mark_ptr + at, mark + tl.where(mark < 0, -chunk * CHUNK, chunk * CHUNK))
    if EACH > 1:
        tl.debug_barrier()
        slots = slot + tl.arange(0, EACH)
        values, marks = gather(value_ptr, mark_ptr, slots, slots >= 0)
        top, index = first_of_largest(values, tl.where(marks < 0, ~marks, marks), 0)
        index = tl.where(tl.min(marks, axis=0) < 0, ~index, index)
        if sum_ptr is not None:
            masses = tl.load(sum_ptr + slots, cache_modifier=".cg")
            _, total = join_parts(tl.reshape(values, [1, EACH]), tl.reshape(masses, [1, EACH]), 1, EACH, LEVELS)
            tl.debug_barrier()
            tl.store(sum_ptr + slot, tl.sum(total, axis=0))
        tl.debug_barrier()
        tl.store(value_ptr + slot, top)
        tl.store(mark_ptr + slot, index)
    return arrived(arrivals_ptr + b, programs)


@triton.jit
def store_argmax_part(
    value_ptr,
    mark_ptr,
    sum_ptr,
    record_ptr,
    rank_ptr,
    b,
    live,
    ROWS: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    PROGRAMS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Combine what the programs of a request have found, and store the record of every row; PROGRAMS is 2**LEVELS."""
    R: tl.constexpr = triton.next_power_of_2(ROWS)
    WORDS: tl.constexpr = 1 if sum_ptr is None else 2
    row = tl.arange(0, R)
    slots = (b * ROWS + row[:, None]) * CHUNKS + tl.arange(0, PROGRAMS)[None, :] * (CHUNKS // PROGRAMS)
    there = (row < ROWS)[:, None] & (slots >= 0) & live
    values, marks = gather(value_ptr, mark_ptr, slots, there)
    top, index = first_of_largest(values, tl.where(marks < 0, ~marks, marks), 1)
    token = tl.load(rank_ptr) * (CHUNKS * CHUNK) + index
    nan = (tl.min(marks, axis=1) < 0).to(tl.int64)
    word = (sort_order(top).to(tl.int64) << 32) | ((0x7FFFFFFF - token) << 1) | nan
    at = record_ptr + (b.to(tl.int64) * ROWS + row) * WORDS
    tl.store(at, tl.where(live, word, 0), mask=row < ROWS)
    if sum_ptr is not None:
        masses = tl.load(sum_ptr + slots, mask=there, other=0.0, cache_modifier=".cg")
        top, mass = join_parts(values, masses, R, PROGRAMS, LEVELS)
        tl.store(at + 1, tl.where(live, mass_word(top, mass), 0), mask=row < ROWS)


@triton.jit
def scan_topk_part(
    logits_ptr,
    key_ptr,
    max_ptr,
    sum_ptr,
    arrivals_ptr,
    b,
    program,
    programs,
    PROLOGUE: tl.constexpr,
    operands,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    PROGRAMS: tl.constexpr,
    LEVELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Scan the CHUNKS // PROGRAMS = 2**LEVELS chunks of a program for K best logits; true in the last of the request.

    A sum is negative where there is NaN.
    """
    EACH: tl.constexpr = CHUNKS // PROGRAMS
    row = b * ROWS + program // PROGRAMS
    first = program % PROGRAMS * EACH
    row_ptr = logits_ptr + row.to(tl.int64) * (CHUNKS * CHUNK)
    slot = row * CHUNKS + first
    for chunk in range(first, first + EACH):
        at = row * CHUNKS + chunk
        given_ptr = row_ptr + chunk * CHUNK
        top, mass = scan_topk(given_ptr, at, 0, 1, key_ptr + at * K, PROLOGUE, operands, K, CHUNK, BLOCK, 1, False)
        tl.store(max_ptr + at, top)
        tl.store(sum_ptr + at, mass)
    if EACH > 1:
        tl.debug_barrier()
        slots = slot + tl.arange(0, EACH)
        tops, masses = gather(max_ptr, sum_ptr, slots, slots >= 0)
        sign = tl.where(tl.min(masses, axis=0) < 0.0, -1.0, 1.0)
        tops, masses = tl.reshape(tops, [1, EACH]), tl.reshape(tl.abs(masses), [1, EACH])
        top, mass = join_parts(tops, masses, 1, EACH, LEVELS)
        order, place = best_of_parts(key_ptr + slot * K, K, 0, CHUNK, slot >= 0, 1, K, EACH)
        tl.debug_barrier()
        tl.store(max_ptr + slot, tl.sum(top, axis=0))
        tl.store(sum_ptr + slot, tl.sum(mass, axis=0) * sign)
        _store_keys(key_ptr + slot * K, 0, order, place, 1, K)
    return arrived(arrivals_ptr + b, programs)


@triton.jit
def _store_keys(key_ptr, row_stride, order, place, ROWS: tl.constexpr, K: tl.constexpr):
    # Orders and places of `best_of_parts` as keys; what is none has place 0, which no element has.
    row = tl.arange(0, triton.next_power_of_2(ROWS))[:, None]
    k = tl.arange(0, triton.next_power_of_2(K))[None, :]
    keys = tl.where(place == 0, NO_KEY, joined(order, place))
    tl.store(key_ptr + row * row_stride + k, keys, mask=(row < ROWS) & (k < K))


@triton.jit
def store_topk_part(
    key_ptr,
    max_ptr,
    sum_ptr,
    record_ptr,
    rank_ptr,
    b,
    live,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    PROGRAMS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Combine what the programs of a request have found, and store the record of every row; PROGRAMS is 2**LEVELS."""
    R: tl.constexpr = triton.next_power_of_2(ROWS)
    EACH: tl.constexpr = CHUNKS // PROGRAMS
    row = tl.arange(0, R)
    slots = (b * ROWS + row[:, None]) * CHUNKS + tl.arange(0, PROGRAMS)[None, :] * EACH
    there = (row < ROWS)[:, None] & (slots >= 0) & live
    tops, masses = gather(max_ptr, sum_ptr, slots, there)
    sign = tl.where(tl.min(masses, axis=1) < 0.0, -1.0, 1.0)
    top, mass = join_parts(tops, tl.abs(masses), R, PROGRAMS, LEVELS)
    keys_ptr = key_ptr + b.to(tl.int64) * (ROWS * CHUNKS * K)
    order, place = best_of_parts(keys_ptr, EACH * K, CHUNKS * K, EACH * CHUNK, live, ROWS, K, PROGRAMS)
    first = (tl.load(rank_ptr) * (CHUNKS * CHUNK)).to(tl.int32)
    # A padding row's record is 0: no keys but such as are masked, and a word of zeros.
    base = record_ptr + b.to(tl.int64) * (ROWS * (K + 1))
    k = tl.arange(0, triton.next_power_of_2(K))[None, :]
    keys = tl.where(place == 0, NO_KEY, joined(order, place - first))
    tl.store(base + row[:, None] * (K + 1) + k, tl.where(live, keys, 0), mask=(row < ROWS)[:, None] & (k < K))
    tl.store(base + row * (K + 1) + K, tl.where(live, mass_word(top, mass * sign), 0), mask=row < ROWS)


@triton.jit
def comm_pad(logits, column, rank_ptr, VOCAB: tl.constexpr, SIZE_LOGITS: tl.constexpr):
    """Logits f32 of a shard's entries `column` i32, -inf of those that are no tokens: see the op."""
    return tl.where(tl.load(rank_ptr) * SIZE_LOGITS + column < VOCAB, logits, float("-inf"))
