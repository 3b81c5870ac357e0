"""Rows: short ones, which one program has in registers, and chunks of long ones.

What a program has of a request's value T[B, M, N] is a block of M x N elements, both rounded up to powers of 2; of
T[B] it is a scalar. Past its sizes a block that is loaded holds 0; one that is computed may hold anything, but flags
are false there.
"""

import triton
import triton.language as tl


@triton.jit
def load_row(row_ptr, live, SIZE: tl.constexpr):
    """The row T[SIZE] at `row_ptr`, up to a power of 2 with zeros; all zeros, and nothing is read, if not live i1."""
    i = tl.arange(0, triton.next_power_of_2(SIZE))
    return tl.load(row_ptr + i, mask=(i < SIZE) & live, other=0)


@triton.jit
def load_rows(row_ptr, live, ROWS: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr):
    """As `load_row`, rows T[ROWS, SIZE] that are STRIDE apart."""
    row = tl.arange(0, triton.next_power_of_2(ROWS))[:, None]
    i = tl.arange(0, triton.next_power_of_2(SIZE))[None, :]
    return tl.load(row_ptr + row * STRIDE + i, mask=(row < ROWS) & (i < SIZE) & live, other=0)


@triton.jit
def store_row(row_ptr, live, x, SIZE: tl.constexpr):
    """The first SIZE elements of a row in registers, in the type of memory; nothing if not live i1."""
    i = tl.arange(0, triton.next_power_of_2(SIZE))
    tl.store(row_ptr + i, x, mask=(i < SIZE) & live)


@triton.jit
def store_rows(row_ptr, live, x, ROWS: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr):
    """As `store_row`, rows T[ROWS, SIZE] to rows that are STRIDE apart."""
    row = tl.arange(0, triton.next_power_of_2(ROWS))[:, None]
    i = tl.arange(0, triton.next_power_of_2(SIZE))[None, :]
    tl.store(row_ptr + row * STRIDE + i, x, mask=(row < ROWS) & (i < SIZE) & live)


@triton.jit
def copy_row(
    source_ptr,
    source,
    target_ptr,
    target,
    there,
    wanted,
    chunk,
    COPIES: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Columns `chunk` of row `source` of T[*, W] to the COPIES rows of `target` in T[*, COPIES, W], if `wanted` i1.

    Zeros where the source is not `there` i1. A chunk that the row does not have is no chunk: nothing happens. Gives
    what is left of `chunk` after this row's.
    """
    CHUNKS: tl.constexpr = (W + BLOCK - 1) // BLOCK
    if (chunk >= 0) & (chunk < CHUNKS):
        w = chunk * BLOCK + tl.arange(0, BLOCK)
        # 64-bit: a row may start past 2**31 elements.
        x = tl.load(source_ptr + source.to(tl.int64) * W + w, mask=(w < W) & there, other=0)
        target_ptr += target.to(tl.int64) * (COPIES * W)
        for copy in range(COPIES):
            tl.store(target_ptr + copy * W + w, x, mask=(w < W) & wanted)
    return chunk - CHUNKS


@triton.jit
def lift(x, AXES: tl.constexpr):
    """A scalar as a block with AXES axes of one element."""
    x = tl.full([1], x, x.dtype)
    if AXES == 2:
        x = x[:, None]
    return x
