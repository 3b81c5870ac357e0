"""A tile that asks for all that one may ask for."""

import triton
import triton.language as tl

from .rows import load_row


@triton.jit
def load_row_twice(row_ptr, SIZE: tl.constexpr):
    """The row T[SIZE] with itself."""
    x = load_row(row_ptr, True, SIZE)
    return x + x


@triton.jit
def toy_mix(
    values, keep, scale_ptr, extra, table_ptr, b, by, shifted_ptr, A: tl.constexpr, SIZE_TABLE: tl.constexpr,
    WORD: tl.constexpr, BY: tl.constexpr,
):  # fmt: skip
    """values T[A], keep i1[A], scale f16 -> half f16[A], flags i1[A], count i32; shifted i64[A] is written."""
    i = tl.arange(0, triton.next_power_of_2(A))
    tl.static_assert(WORD == 'a"b')
    doubled = load_row_twice(table_ptr, SIZE_TABLE)
    scale = tl.load(scale_ptr + b).to(tl.float32)
    half = values.to(tl.float32) * scale * 0.5
    if extra is not None:
        half += extra.to(tl.float32)
    tl.store(shifted_ptr + b * A + i, tl.sum(doubled, axis=0) + by + BY + i, mask=i < A)
    flags = keep & (half > 0)
    return half, flags, tl.sum(flags.to(tl.int64), axis=0)
