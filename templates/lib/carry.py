"""The `carry` op that is more than a load or a store; blocks are as rows.py says."""

import triton
import triton.language as tl


@triton.jit
def carry_append(pool_ptr, rows, seq_lens, values, count, A: tl.constexpr, RING: tl.constexpr):
    """The first `count` of values T[A] to the entries of the positions after seq_len in a ring T[P, RING]."""
    i = tl.arange(0, triton.next_power_of_2(A))
    entry = (((seq_lens + 1) % RING).to(tl.int32) + i) % RING
    tl.store(pool_ptr + rows * RING + entry, values, mask=(i < count) & (i < A) & (rows != 0))
