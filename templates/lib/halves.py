"""Hidden rows as numbers of 8 bits, two of them each, by which GPUs multiply weights of the same kind.

A row has one factor, a power of two, so nothing is rounded but what is too small beside the row's largest number. In i8
a number is 256 high + low, a whole one; in f8 (e4m3) it is high + low, with four bits each.
"""

import triton
import triton.language as tl

BITS_OF_I8 = tl.constexpr(15)
BITS_OF_F8 = tl.constexpr(8)
"""Bits before the point of a row's largest number."""
MOST = tl.constexpr(127 * 256 + 127)
"""The largest number of two halves in i8."""


@triton.jit
def factors(largest, BITS: tl.constexpr):
    """Powers of two f32: with the first one the largest has so many bits before its point; the second undoes it."""
    exponent = tl.maximum((largest.to(tl.int32, bitcast=True) >> 23) & 255, BITS)
    up = ((253 - exponent + BITS) << 23).to(tl.float32, bitcast=True)
    return up, ((exponent - BITS + 1) << 23).to(tl.float32, bitcast=True)


@triton.jit
def rounded(x, exponent):
    """The nearest multiples of 2**exponent, even ones of two, as f32: of numbers below 2**(22 + exponent)."""
    # So large that numbers beside it are these multiples: the sum is rounded, and the difference is not.
    large = (((exponent + 150) << 23) | 0x400000).to(tl.float32, bitcast=True)
    return (x + large) - large


@triton.jit
def e4m3(x):
    """The nearest numbers of e4m3, as f32: of numbers that it has a place for."""
    exponent = ((x.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    return rounded(x, tl.maximum(exponent, -6) - 3)


@triton.jit
def halves_row(states_ptr, high_ptr, low_ptr, worth_ptr, row, W: tl.constexpr, BLOCK: tl.constexpr):
    """Store both halves of a row, and what its numbers are worth."""
    k = tl.arange(0, BLOCK)
    at, inside = row * W + k, k < W
    x = tl.load(states_ptr + at, mask=inside, other=0.0).to(tl.float32)
    finite = tl.abs(x) < float("inf")
    x = tl.where(finite, x, 0.0)
    if high_ptr.dtype.element_ty == tl.int8:
        up, worth = factors(tl.max(tl.abs(x), axis=0), BITS_OF_I8)
        whole = tl.minimum(rounded(x * up, tl.full([], 0, tl.int32)).to(tl.int32), MOST)
        high = (whole + 128) >> 8
        low = whole - (high << 8)
    else:
        up, worth = factors(tl.max(tl.abs(x), axis=0), BITS_OF_F8)
        high = e4m3(x * up)
        low = e4m3(x * up - high)
    tl.store(high_ptr + at, high.to(high_ptr.dtype.element_ty), mask=inside)
    tl.store(low_ptr + at, low.to(low_ptr.dtype.element_ty), mask=inside)
    whole_row = tl.min(finite.to(tl.int32), axis=0) != 0
    tl.store(worth_ptr + row, tl.where(whole_row, worth, float("nan")))
