"""The `kv` ops that say where tokens are: positions, and slots in a request's row of the table i32[P, C].

Blocks are as rows.py says.
"""

import triton
import triton.language as tl


@triton.jit
def kv_admit(req_to_token_columns, rows, seq_lens, WINDOW: tl.constexpr, LONGEST: tl.constexpr):
    """Row and length i64 of a request in a step that writes WINDOW slots of it, and i1, whether it has no room.

    Without room, in its row of the table or in a mask that no text is longer than LONGEST for, row and length are 0;
    so they are of padding, whatever length it has.
    """
    room = req_to_token_columns - WINDOW
    if LONGEST >= 0:
        room = tl.minimum(room, LONGEST)
    full = (rows != 0) & ((seq_lens < 0) | (seq_lens > room))
    live = (rows != 0) & (full == 0)
    return tl.where(live, rows, 0), tl.where(live, seq_lens, 0), full


@triton.jit
def kv_positions(seq_lens, OFFSET: tl.constexpr, STRIDE: tl.constexpr, SIZE_POSITIONS: tl.constexpr):
    """seq_len + OFFSET + STRIDE * i, but never less than 0: i64[SIZE_POSITIONS], or one i64 if that is 0."""
    if SIZE_POSITIONS == 0:
        position = seq_lens + OFFSET
    else:
        # In 64 bits: noise is keyed with places 2^32 apart.
        position = seq_lens + OFFSET + STRIDE * tl.arange(0, triton.next_power_of_2(SIZE_POSITIONS)).to(tl.int64)
    # Lengths are no less than 0.
    if OFFSET < 0 or STRIDE < 0:
        position = tl.maximum(position, 0)
    return position


@triton.jit
def kv_advance(positions):
    """One further."""
    return positions + 1


@triton.jit
def kv_slots(req_to_token_ptr, req_to_token_stride, rows, seq_lens, OFFSET: tl.constexpr, SIZE_SLOTS: tl.constexpr):
    """Slots i64[SIZE_SLOTS] of the positions from seq_len + OFFSET on; 0 for padding."""
    i = tl.arange(0, triton.next_power_of_2(SIZE_SLOTS))
    entries = req_to_token_ptr + rows * req_to_token_stride + seq_lens + OFFSET
    return tl.load(entries + i, mask=(i < SIZE_SLOTS) & (rows != 0), other=0).to(tl.int64)


@triton.jit
def kv_forward_slots(req_to_token_ptr, req_to_token_stride, rows, seq_lens, OFFSET: tl.constexpr, D: tl.constexpr):
    """`kv_slots` along the axis of forwards: i64[D, 1]."""
    return kv_slots(req_to_token_ptr, req_to_token_stride, rows, seq_lens, OFFSET, D)[:, None]


@triton.jit
def branch_run(tail, PAGE: tl.constexpr, ROOM: tl.constexpr):
    """Positions from one branch to the next: the tail of a partly filled page and ROOM, in whole pages."""
    return (tail + ROOM + PAGE - 1) // PAGE * PAGE


@triton.jit
def kv_branch_slots(
    req_to_token_ptr,
    req_to_token_stride,
    rows,
    seq_lens,
    OFFSET: tl.constexpr,
    PAGE: tl.constexpr,
    ROOM: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
):
    """Slots i64[D, K] of the positions base + branch * run + forward; 0 for padding."""
    i = tl.arange(0, triton.next_power_of_2(D))[:, None]
    branch = tl.arange(0, triton.next_power_of_2(K))[None, :]
    base = seq_lens + OFFSET
    run = branch_run(base % PAGE, PAGE, ROOM)
    entries = req_to_token_ptr + rows * req_to_token_stride + base + branch * run + i
    return tl.load(entries, mask=(i < D) & (branch < K) & (rows != 0), other=0).to(tl.int64)
