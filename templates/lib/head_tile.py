"""A tile of logits: products of hidden rows with the weights of some entries of a head, which head.py reduces.

Rows have 8 bits where weights have, as `halves.py` makes them: sums of i8 are whole numbers, and what one is worth, of
the row and of the entry, multiplies the sum.

Beside tokens i64[rows] a row is that of its token among TABLE rows, and what it gives is added to logits that are there
already: to those of row r, STRIDE elements after those of row r - 1. Such rows have no halves: weights of 8 bits are
multiplied as numbers of the rows' dtype.

A tuple has all operands, None for those that a head does without: rows, their lower halves and worths, weights and
their scales, tokens, and the logits that are there already.
"""

import triton
import triton.language as tl

ROUGH = tl.constexpr(64)
"""Products of e4m3 that a GPU may add with fewer bits than f32 has: as many as the least tile has of a sum."""


@triton.jit
def head_tile(
    operands,
    first_entry,
    end,
    first_row,
    rows,
    W: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    TABLE: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """Logits f32[BN, BM] of entries from the first one to `end`, and of rows from the first; others have any."""
    states_ptr, low_ptr, worth_ptr, weight_ptr, scale_ptr, token_ptr, base_ptr = operands
    n, m, k = tl.arange(0, BN), tl.arange(0, BM), tl.arange(0, BK)
    inside = (first_entry + n < end)[:, None]
    given = (first_row + m < rows)[None, :]
    # 64-bit: V * W passes 2**31. Within a tile, offsets of 32 bits take half the registers.
    wide = tl.full([], W, tl.int64)
    weights_ptr = (weight_ptr + first_entry * wide) + (n[:, None] * W + k[None, :])
    place = m[None, :] * W + k[:, None]
    if token_ptr is None:
        rows_ptr = (states_ptr + first_row * wide) + place
    else:
        token = tl.load(token_ptr + first_row + m, mask=first_row + m < rows, other=0)
        rows_ptr = states_ptr + (tl.minimum(tl.maximum(token, 0), TABLE - 1) * W)[None, :] + k[:, None]
    halved: tl.constexpr = low_ptr is not None
    whole: tl.constexpr = halved and weight_ptr.dtype.element_ty == tl.int8
    logits = tl.zeros([BN, BM], tl.int32 if whole else tl.float32)
    if halved:
        lows_ptr = (low_ptr + first_row * wide) + place
        lows = logits
    for at in range(0, W, BK):
        if W % BK == 0:
            here, there = inside, given
        else:
            here, there = inside & (at + k < W)[None, :], given & (at + k < W)[:, None]
        weights = tl.load(weights_ptr + at, mask=here, other=0.0)
        states = tl.load(rows_ptr + at, mask=there, other=0.0)
        if not halved:
            logits = tl.dot(weights.to(states.dtype), states, logits, input_precision="ieee")
        else:
            lower = tl.load(lows_ptr + at, mask=there, other=0.0)
            if whole:
                logits = tl.dot(weights, states, logits, out_dtype=tl.int32)
                lows = tl.dot(weights, lower, lows, out_dtype=tl.int32)
            else:
                logits = tl.dot(weights, states, logits, max_num_imprecise_acc=ROUGH)
                lows = tl.dot(weights, lower, lows, max_num_imprecise_acc=ROUGH)
    if halved:
        if whole:
            logits = logits.to(tl.float32) * 256.0 + lows.to(tl.float32)
        else:
            logits += lows
        logits *= tl.load(worth_ptr + first_row + m, mask=first_row + m < rows, other=0.0)[None, :]
    if scale_ptr is not None:
        logits *= tl.load(scale_ptr + first_entry + n, mask=first_entry + n < end, other=0.0)[:, None]
    if base_ptr is not None:
        base = (base_ptr + first_row * tl.full([], STRIDE, tl.int64)) + (m[None, :].to(tl.int64) * STRIDE + n[:, None])
        logits += tl.load(base + first_entry, mask=inside & given, other=0.0).to(tl.float32)
    return logits
