"""The `kv` ops of a request's row of a block table i32[P, C], whose entries are blocks of PAGE slots.

Blocks of values are as rows.py says.
"""

import triton
import triton.language as tl


@triton.jit
def kv_admit_blocks(block_table_columns, num_blocks_ptr, rows, seq_lens, WINDOW: tl.constexpr, PAGE: tl.constexpr):
    """`kv_admit` of a request that has so many blocks of PAGE tokens; of a row none has more than there are columns."""
    blocks = tl.load(num_blocks_ptr + rows, mask=rows != 0, other=0)
    room = tl.minimum(blocks, block_table_columns).to(tl.int64) * PAGE - WINDOW
    full = (rows != 0) & ((seq_lens < 0) | (seq_lens > room))
    live = (rows != 0) & (full == 0)
    return tl.where(live, rows, 0), tl.where(live, seq_lens, 0), full


@triton.jit
def kv_block_slots(
    block_table_ptr,
    block_table_stride,
    rows,
    seq_lens,
    OFFSET: tl.constexpr,
    PAGE: tl.constexpr,
    PADDING: tl.constexpr,
    SIZE_SLOTS: tl.constexpr,
):
    """Slots i64[SIZE_SLOTS] of the positions from seq_len + OFFSET on, PAGE of them in a block; of padding PADDING."""
    i = tl.arange(0, triton.next_power_of_2(SIZE_SLOTS))
    at = seq_lens + OFFSET + i
    entries = block_table_ptr + rows * block_table_stride + at // PAGE
    live = (i < SIZE_SLOTS) & (rows != 0)
    blocks = tl.load(entries, mask=live, other=0).to(tl.int64)
    return tl.where(live, blocks * PAGE + at % PAGE, PADDING)


@triton.jit
def kv_forward_block_slots(
    block_table_ptr,
    block_table_stride,
    rows,
    seq_lens,
    OFFSET: tl.constexpr,
    PAGE: tl.constexpr,
    PADDING: tl.constexpr,
    D: tl.constexpr,
):
    """`kv_block_slots` along the axis of forwards: i64[D, 1]."""
    return kv_block_slots(block_table_ptr, block_table_stride, rows, seq_lens, OFFSET, PAGE, PADDING, D)[:, None]
