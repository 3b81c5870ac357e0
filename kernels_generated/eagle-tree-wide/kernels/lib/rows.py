"""Rows: short ones, which one program has in registers, and chunks of long ones."""

import triton
import triton.language as tl


@triton.jit
def load_row(row_ptr, live, SIZE: tl.constexpr):
    """The row T[SIZE] at `row_ptr`, up to a power of 2 with zeros; all zeros, and nothing is read, if not live i1."""
    i = tl.arange(0, triton.next_power_of_2(SIZE))
    return tl.load(row_ptr + i, mask=(i < SIZE) & live, other=0)


@triton.jit
def store_row(row_ptr, x, SIZE: tl.constexpr):
    """The first SIZE elements of a row in registers, in the type of memory."""
    i = tl.arange(0, triton.next_power_of_2(SIZE))
    tl.store(row_ptr + i, x, mask=i < SIZE)


@triton.jit
def copy_chunk(
    source_ptr, row, target_ptr, b, live, chunk, COPIES: tl.constexpr, W: tl.constexpr, BLOCK_W: tl.constexpr
):
    """Columns `chunk` of row `row` of T[P, W] to the rows of `b` in T[B, COPIES, W]; zeros if not live i1.

    A chunk that the row does not have is no chunk: nothing happens. Gives what is left of `chunk` after this row's.
    """
    CHUNKS: tl.constexpr = (W + BLOCK_W - 1) // BLOCK_W
    if (chunk >= 0) & (chunk < CHUNKS):
        w = chunk * BLOCK_W + tl.arange(0, BLOCK_W)
        # 64-bit: a row may start past 2**31 elements.
        x = tl.load(source_ptr + row.to(tl.int64) * W + w, mask=(w < W) & live, other=0)
        target_ptr += b.to(tl.int64) * (COPIES * W)
        for copy in range(COPIES):
            tl.store(target_ptr + copy * W + w, x, mask=w < W)
    return chunk - CHUNKS
