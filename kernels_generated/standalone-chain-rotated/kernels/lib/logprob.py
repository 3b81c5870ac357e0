"""The log-probability of a row's argmax, in the same scan as the argmax.

The f32 softmax over the whole row: NaN counts as -inf, equal infinities share, a row of only NaN and -inf gives
-inf. At the largest logit it is -log(sum of exp(x - largest)), so a chunk adds one number to the value and the
mark of argmax.py: the sum of exp(x - value).
"""

import triton
import triton.language as tl

from .argmax import first_of_largest, nan_of_eight
from .topk import LOWEST, rescaled


@triton.jit
def _halves(x, HALF: tl.constexpr):
    # Which elements come together does not matter, so the compiler may take those that a thread has in registers.
    return tl.split(tl.reshape(x, [HALF, 2], can_reorder=True))


@triton.jit
def _add_tile(peak, total, x, BLOCK: tl.constexpr):
    """(peak f32[BLOCK // 8], sum of exp(x - peak)) with a tile f32[BLOCK] added; a NaN or +inf makes the sum NaN.

    Eight elements share a running maximum: one exp and four more operations per element, and few registers.
    """
    a, b = _halves(x, BLOCK // 2)
    a0, a1 = _halves(a, BLOCK // 4)
    b0, b1 = _halves(b, BLOCK // 4)
    c0, c1 = _halves(a0, BLOCK // 8)
    c2, c3 = _halves(a1, BLOCK // 8)
    c4, c5 = _halves(b0, BLOCK // 8)
    c6, c7 = _halves(b1, BLOCK // 8)
    larger = tl.maximum(tl.maximum(c0, c1), tl.maximum(c2, c3))
    larger = tl.maximum(larger, tl.maximum(tl.maximum(c4, c5), tl.maximum(c6, c7)))
    new = tl.maximum(peak, larger)
    total = total * tl.exp(peak - new) + tl.exp(c0 - new) + tl.exp(c1 - new) + tl.exp(c2 - new) + tl.exp(c3 - new)
    return new, total + tl.exp(c4 - new) + tl.exp(c5 - new) + tl.exp(c6 - new) + tl.exp(c7 - new)


@triton.jit
def _sum_exactly(
    row_ptr, row, first, stop, value, PROLOGUE: tl.constexpr, operands, V: tl.constexpr, BLOCK: tl.constexpr
):
    """(sum of exp(x - value) f32, whether there is NaN i1) of a chunk's tiles, given its largest value."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    nan = tl.zeros([BLOCK // 8], tl.float32)
    for block in range(first, tl.minimum(stop, (V + BLOCK - 1) // BLOCK)):
        offset = block * BLOCK + lane
        x = tl.load(row_ptr + offset, mask=offset < V, other=float("-inf")).to(tl.float32)
        x = tl.where(offset < V, PROLOGUE(x, tl.minimum(offset, V - 1), row, operands), float("-inf"))
        nan = tl.maximum(nan, nan_of_eight(x, BLOCK), propagate_nan=tl.PropagateNan.ALL)
        # The difference of equal infinities would be NaN.
        total += tl.where(x < value, tl.exp(x - value), tl.where(x == value, 1.0, 0.0))
    return tl.sum(total, axis=0), tl.max((nan != nan).to(tl.int32), axis=0) != 0


@triton.jit
def scan_chunk_and_sum(
    row_ptr, row, chunk, chunks, PROLOGUE: tl.constexpr, operands, V: tl.constexpr, BLOCK: tl.constexpr
):
    """(value f32, mark i32, sum f32) of chunk `chunk` of `chunks` of the row T[V] at `row_ptr`.

    As `scan_chunk`. Logits are read a second time only in a chunk that holds NaN or +inf.
    """
    BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    WHOLE: tl.constexpr = V // BLOCK
    lane = tl.arange(0, BLOCK)
    per = (BLOCKS + chunks - 1) // chunks
    first = chunk * per
    stop = first + per
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_block = tl.zeros([BLOCK], tl.int32)
    # Starting above -inf makes every -inf add exp(-inf) = 0 without a comparison.
    peak = tl.full([BLOCK // 8], LOWEST, tl.float32)
    total = tl.zeros([BLOCK // 8], tl.float32)
    for block in range(first, tl.minimum(stop, WHOLE)):
        offset = block * BLOCK + lane
        x = PROLOGUE(tl.load(row_ptr + offset).to(tl.float32), offset, row, operands)
        better = x > best
        best = tl.where(better, x, best)
        best_block = tl.where(better, block, best_block)
        peak, total = _add_tile(peak, total, x, BLOCK)
    if WHOLE < BLOCKS:
        if (first <= WHOLE) & (stop > WHOLE):
            offset = WHOLE * BLOCK + lane
            x = tl.load(row_ptr + offset, mask=offset < V, other=float("-inf")).to(tl.float32)
            x = tl.where(offset < V, PROLOGUE(x, tl.minimum(offset, V - 1), row, operands), float("-inf"))
            better = x > best
            best = tl.where(better, x, best)
            best_block = tl.where(better, WHOLE, best_block)
            peak, total = _add_tile(peak, total, x, BLOCK)
    value, index = first_of_largest(best, best_block * BLOCK + lane, 0)
    mass = tl.sum(rescaled(total, peak, tl.maximum(value, LOWEST)), axis=0)
    if tl.max((total != total).to(tl.int32), axis=0) != 0:
        mass, held_nan = _sum_exactly(row_ptr, row, first, stop, value, PROLOGUE, operands, V, BLOCK)
        index = tl.where(held_nan, ~index, index)
    return value, index, mass


@triton.jit
def logprob_of_largest(value, total, axis: tl.constexpr):
    """Reduce the values and sums of chunks along `axis` to the log-probability f32 of their row's argmax."""
    top = tl.max(value, axis=axis, keep_dims=True)
    mass = tl.sum(rescaled(total, value, top), axis=axis)
    nothing = tl.max(value, axis=axis) == float("-inf")
    return tl.where(nothing, float("-inf"), -tl.log(tl.where(nothing, 1.0, mass)))
