"""The `vocab` reductions of the ROWS rows of a request: its programs scan a chunk each, and the last one combines.

Grid (B, ROWS * splits): program = row * splits + split. Logits T[B, ROWS, V] have rows STRIDE apart, partials are
[B, ROWS, SPLITS], and there is one counter per request, so its last program has the results of all of its rows. Of a
request that is not live, padding, nobody scans, and what is combined is what nothing gives: index and p 0, not bad.
What is reduced is PROLOGUE(logits f32, columns i32, row, operands), where the row counts those of all requests.
"""

import triton
import triton.language as tl

from .argmax import arrive, best_of_chunks, gather, scan_chunk
from .logprob import logprob_of_largest, scan_chunk_and_sum
from .topk import combine_topk, scan_topk


@triton.jit
def scan_argmax(
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
    V: tl.constexpr,
    STRIDE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Scan one chunk for its largest logit, with the sum of exponentials unless `sum_ptr` is None; true in the last."""
    splits = programs // ROWS
    row = b * ROWS + program // splits
    split = program % splits
    # 64-bit: B * ROWS * STRIDE may pass 2**31.
    row_ptr = logits_ptr + row.to(tl.int64) * STRIDE
    slot = row * SPLITS + split
    if sum_ptr is None:
        value, mark = scan_chunk(row_ptr, row, split, splits, PROLOGUE, operands, V, BLOCK)
    else:
        value, mark, total = scan_chunk_and_sum(row_ptr, row, split, splits, PROLOGUE, operands, V, BLOCK)
        tl.store(sum_ptr + slot, total)
    return arrive(value_ptr, mark_ptr, slot, value, mark, arrivals_ptr + b, programs)


@triton.jit
def _slots(b, programs, live, ROWS: tl.constexpr, SPLITS: tl.constexpr):
    # Where the partials of a request are, and which of them are there: none of padding.
    lane = tl.arange(0, SPLITS)
    splits = tl.where(live, programs // ROWS, 0)
    if ROWS == 1:
        slots = b * SPLITS + lane
        present = lane < splits
    else:
        row = tl.arange(0, triton.next_power_of_2(ROWS))[:, None]
        slots = (b * ROWS + row) * SPLITS + lane[None, :]
        present = (row < ROWS) & (lane < splits)[None, :]
    return slots, present


@triton.jit
def combine_argmax(value_ptr, mark_ptr, b, programs, live, ROWS: tl.constexpr, SPLITS: tl.constexpr):
    """Index i32[ROWS] and bad i1[ROWS] of a request's rows; of a single row a scalar each."""
    slots, present = _slots(b, programs, live, ROWS, SPLITS)
    values, marks = gather(value_ptr, mark_ptr, slots, present)
    index, bad = best_of_chunks(values, marks, len(values.shape) - 1)
    if ROWS > 1:
        bad = bad & (tl.arange(0, triton.next_power_of_2(ROWS)) < ROWS)
    return index, bad & live


@triton.jit
def combine_logprob(value_ptr, sum_ptr, b, programs, live, ROWS: tl.constexpr, SPLITS: tl.constexpr):
    """The log-probability f32[ROWS] of every row's argmax; of a single row a scalar."""
    slots, present = _slots(b, programs, live, ROWS, SPLITS)
    values, sums = gather(value_ptr, sum_ptr, slots, present)
    return tl.where(live, logprob_of_largest(values, sums, len(values.shape) - 1), 0.0)


@triton.jit
def scan_topks(
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
    V: tl.constexpr,
    STRIDE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Scan one chunk for its K best logits; true in the last program."""
    splits = programs // ROWS
    row = b * ROWS + program // splits
    split = program % splits
    # 64-bit: B * ROWS * STRIDE may pass 2**31.
    row_ptr = logits_ptr + row.to(tl.int64) * STRIDE
    slot = row * SPLITS + split
    top, mass = scan_topk(
        row_ptr, row, split, splits, key_ptr + slot * K, PROLOGUE, operands, K, V, BLOCK, GROUP, ROWS == 1
    )
    return arrive(max_ptr, sum_ptr, slot, top, mass, arrivals_ptr + b, programs)


@triton.jit
def combine_topks(
    logits_ptr,
    key_ptr,
    max_ptr,
    sum_ptr,
    b,
    programs,
    live,
    PROLOGUE: tl.constexpr,
    operands,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    STRIDE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """p f32[ROWS, K], index i64[ROWS, K], bad i1[ROWS] of a request's rows; of a single row [K], [K] and a scalar.

    Of a single row the last program reads again what the best groups have seen, once for all chunks.
    """
    KP: tl.constexpr = triton.next_power_of_2(K)
    chunks = tl.where(live, programs // ROWS, 0)
    row_ptr = logits_ptr + b.to(tl.int64) * (ROWS * STRIDE)
    p, index, bad = combine_topk(
        row_ptr,
        key_ptr,
        max_ptr,
        sum_ptr,
        b * ROWS,
        chunks,
        PROLOGUE,
        operands,
        ROWS,
        K,
        V,
        SPLITS,
        BLOCK,
        GROUP,
        ROWS == 1,
    )
    real = live & (tl.arange(0, KP)[None, :] < K)
    p = tl.where(real, p, 0.0)
    index = tl.where(real, index, 0).to(tl.int64)
    bad = bad & live
    if ROWS == 1:
        p = tl.reshape(p, [KP])
        index = tl.reshape(index, [KP])
        bad = tl.max(bad.to(tl.int32), axis=0) != 0
    return p, index, bad
