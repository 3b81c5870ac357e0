"""Positions of tokens, and the KV slots that a request's row of the slot table has for them."""

import triton
import triton.language as tl


@triton.jit
def admit(row, seq_len, columns, WINDOW: tl.constexpr, LONGEST: tl.constexpr):
    """Row and length i64 of a request in a step that writes WINDOW slots of it, and i1, whether it has no room.

    Without room, in its row of the table or in a mask that no text is longer than LONGEST for, row and length are 0.
    """
    room = columns - WINDOW
    if LONGEST >= 0:
        room = tl.minimum(room, LONGEST)
    full = (row != 0) & ((seq_len < 0) | (seq_len > room))
    return tl.where(full, 0, row), tl.where(full, 0, seq_len), full


@triton.jit
def store_positions(target_ptr, b, seq_len, OFFSET: tl.constexpr, STRIDE: tl.constexpr, SIZE: tl.constexpr):
    """seq_len + OFFSET + STRIDE * i, but never less than 0, to row b of i64[B, SIZE]."""
    i = tl.arange(0, triton.next_power_of_2(SIZE))
    position = seq_len + OFFSET + STRIDE * i
    # Lengths are no less than 0.
    if OFFSET < 0 or STRIDE < 0:
        position = tl.maximum(position, 0)
    tl.store(target_ptr + b * SIZE + i, position, mask=i < SIZE)


@triton.jit
def _entries(FORWARDS: tl.constexpr, K: tl.constexpr):
    # Entry i * K + branch is forward i of a branch.
    entry = tl.arange(0, triton.next_power_of_2(FORWARDS * K))
    return entry // K, entry % K


@triton.jit
def load_runs(slots_ptr, base, live, FORWARDS: tl.constexpr, K: tl.constexpr, PAGE: tl.constexpr, ROOM: tl.constexpr):
    """Slots of the positions base + branch * run + i, i32[FORWARDS * K rounded up to a power of 2]; 0 if not live i1.

    A run has room for the partly filled page before it: base % PAGE + ROOM positions, rounded up to pages.
    """
    i, branch = _entries(FORWARDS, K)
    run = (base % PAGE + ROOM + PAGE - 1) // PAGE * PAGE
    return tl.load(slots_ptr + base + branch * run + i, mask=(i < FORWARDS) & live, other=0)


@triton.jit
def store_runs(target_ptr, b, slots, FORWARDS: tl.constexpr, K: tl.constexpr, MAX_B: tl.constexpr):
    """What `load_runs` gave for request b, to i64[FORWARDS, MAX_B, K].

    Forward-major, laid out for the largest batch: forward i reads a prefix of its own contiguous row.
    """
    i, branch = _entries(FORWARDS, K)
    tl.store(target_ptr + (i * MAX_B + b) * K + branch, slots.to(tl.int64), mask=i < FORWARDS)
