"""Log-probabilities of tokens, and the most probable ones, of rows of logits that several programs share.

Every row has programs of its own, which scan a chunk each; the last one to arrive combines. Chunks and arrival are
those of argmax.py, sums and NaN as in logprob.py, the best elements as in topk.py. Which row of the batch's a place of
the accepted path has says the path, so rows of nodes that were not accepted are not read.
"""

import triton
import triton.language as tl

from .argmax import arrive, gather
from .best import in_order, order_value
from .logprob import scan_chunk_and_sum
from .topk import _best_of_chunks, best_of_groups, rescaled, scan_topk


@triton.jit
def sample_scale(logits, column, row, scales_ptr, cuts_ptr):
    """Logits f32 of a row as a token is drawn from their softmax: see the op."""
    scale = tl.load(scales_ptr + row)
    x = logits
    if cuts_ptr is not None:
        x = tl.where(x < tl.load(cuts_ptr + row), float("-inf"), x)
    return tl.where(scale > 0.0, x * scale, logits)


@triton.jit
def _log_p(x, top, mass):
    # Of values f32 up to the largest one of their row, -inf where that is -inf; NaN counts as -inf.
    x = tl.where(x == x, x, float("-inf"))
    below = tl.where(x == top, 0.0, x) - tl.where(x == top, 0.0, top)
    return tl.where(top > float("-inf"), below - tl.log(tl.where(mass > 0.0, mass, 1.0)), float("-inf"))


@triton.jit
def score_row(
    logits_ptr,
    rows_ptr,
    path_ptr,
    index_ptr,
    logprob_ptr,
    tokens_ptr,
    logprobs_ptr,
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
    PLACES: tl.constexpr,
    COUNT: tl.constexpr,
    V: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIDE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Score one of the PLACES rows of request `b`: grid (B, PLACES * chunks), program = place * chunks + chunk.

    Logits are T[B, ROWS, V], rows STRIDE apart. With `path_ptr` place i has the row that i32[B, PLACES] says, none if
    that is negative; without, ROWS is PLACES and every place has its own. `index_ptr`, if there is one, names a token
    i32 of every place, whose log-probability goes to f32[B, PLACES]; if COUNT is above 0 as many most probable tokens
    go to i32 and f32 [B, PLACES, COUNT]. Partials are [B, PLACES, SPLITS], with COUNT keys each; there is a counter for
    every place.
    """
    chunks = programs // PLACES
    place = b * PLACES + program // chunks
    chunk = program % chunks
    live = tl.load(rows_ptr + b) != 0
    row = place
    if path_ptr is not None:
        node = tl.load(path_ptr + place)
        live = live & (node >= 0)
        row = b * ROWS + tl.minimum(tl.maximum(node - b * ROWS, 0), ROWS - 1)
    # 64-bit: B * ROWS * STRIDE may pass 2**31.
    row_ptr = logits_ptr + row.to(tl.int64) * STRIDE
    slot = place * SPLITS + chunk
    last = chunk == 0
    if live:
        if COUNT > 0:
            key_at = key_ptr + slot * COUNT
            top, mass = scan_topk(row_ptr, row, chunk, chunks, key_at, PROLOGUE, operands, COUNT, V, BLOCK, GROUP, True)
        else:
            top, _, mass = scan_chunk_and_sum(row_ptr, row, chunk, chunks, PROLOGUE, operands, V, BLOCK)
        last = arrive(max_ptr, sum_ptr, slot, top, mass, arrivals_ptr + place, chunks)
    if last:
        present = live & (tl.arange(0, SPLITS) < chunks)
        tops, masses = gather(max_ptr, sum_ptr, place * SPLITS + tl.arange(0, SPLITS), present)
        top = tl.max(tops, axis=0)
        # A chunk that held NaN has a negative sum.
        mass = tl.sum(rescaled(tl.abs(masses), tops, top), axis=0)
        if index_ptr is not None:
            token = tl.load(index_ptr + place) + tl.zeros([1], tl.int32)
            there = live & (token >= 0) & (token < V)
            token = tl.where(there, token, 0)
            x = tl.load(row_ptr + token, mask=there, other=float("-inf")).to(tl.float32)
            log_p = _log_p(PROLOGUE(x, token, row, operands), top, mass)
            tl.store(logprob_ptr + place + tl.zeros([1], tl.int32), tl.where(live, log_p, 0.0))
        if COUNT > 0:
            _store_best(
                row_ptr,
                row,
                place,
                live,
                tl.where(live, chunks, 0),
                top,
                mass,
                key_ptr,
                tokens_ptr,
                logprobs_ptr,
                PROLOGUE,
                operands,
                COUNT,
                V,
                SPLITS,
                BLOCK,
                GROUP,
            )


@triton.jit
def _store_best(
    row_ptr,
    row,
    place,
    live,
    chunks,
    top,
    mass,
    key_ptr,
    tokens_ptr,
    logprobs_ptr,
    PROLOGUE: tl.constexpr,
    operands,
    COUNT: tl.constexpr,
    V: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    # What the groups of the best elements have seen is read again, once for all chunks; logs of p are not made of p,
    # which may be too small for one.
    KP: tl.constexpr = triton.next_power_of_2(COUNT)
    order, at = _best_of_chunks(key_ptr, place, chunks, 1, COUNT, SPLITS)
    some = tl.maximum(chunks, 1)
    per = ((V + BLOCK - 1) // BLOCK + some - 1) // some
    order, at = tl.reshape(order, [KP]), tl.reshape(at, [KP])
    key, rank = best_of_groups(row_ptr, row, per, order, at, PROLOGUE, operands, COUNT, V, BLOCK, GROUP)
    order, at = in_order(key, rank, COUNT)
    k = tl.arange(0, KP)
    log_p = _log_p(order_value(order), top, mass)
    tl.store(tokens_ptr + place * COUNT + k, tl.where(live, 0x7FFFFFFF - at, 0), mask=k < COUNT)
    tl.store(logprobs_ptr + place * COUNT + k, tl.where(live, log_p, 0.0), mask=k < COUNT)
