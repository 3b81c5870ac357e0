"""The op of ANCHORED on the device. Kernels that compute it hold a copy of this file."""

import triton
import triton.language as tl


@triton.jit
def anchored_repeats(tokens_ptr, b, count, A: tl.constexpr):
    """Of a request, count i32: how many of the first `count` of its tokens i32[A] are the one before them."""
    i = tl.arange(0, triton.next_power_of_2(A))
    there = (i > 0) & (i < count) & (i < A)
    token = tl.load(tokens_ptr + b * A + i, mask=there, other=0)
    before = tl.load(tokens_ptr + b * A + i - 1, mask=there, other=0)
    return tl.sum((there & (token == before)).to(tl.int32), axis=0)
