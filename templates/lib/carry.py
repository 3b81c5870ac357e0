"""The `carry` ops that are more than a load or a store; blocks are as rows.py says."""

import triton
import triton.language as tl


@triton.jit
def carry_append(pool_ptr, rows, seq_lens, values, count, A: tl.constexpr, RING: tl.constexpr):
    """The first `count` of values T[A] to the entries of the positions after seq_len in a ring T[P, RING]."""
    i = tl.arange(0, triton.next_power_of_2(A))
    entry = (((seq_lens + 1) % RING).to(tl.int32) + i) % RING
    tl.store(pool_ptr + rows * RING + entry, values, mask=(i < count) & (i < A) & (rows != 0))


@triton.jit
def carry_count(pool_ptr, rows, values, count, SIZE_VALUES: tl.constexpr, RING: tl.constexpr):
    """2 more in the words i32[P, RING] of the first `count` of values i32[SIZE_VALUES], or of a scalar one."""
    counted = rows != 0
    i = 0
    if SIZE_VALUES > 0:
        i = tl.arange(0, triton.next_power_of_2(SIZE_VALUES))
        counted = counted & (i < SIZE_VALUES)
    if count is not None:
        counted = counted & (i < count)
    tl.atomic_add(pool_ptr + rows * RING + values, 2, mask=counted, sem="relaxed")


@triton.jit
def carry_convert(x, DTYPE: tl.constexpr):
    """Integers as i32 or i64, a scalar or a block."""
    return x.to(tl.int32) if DTYPE == "i32" else x.to(tl.int64)
