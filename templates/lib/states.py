"""States of recurrent layers, each in several tensors whose places a table has."""

import triton
import triton.language as tl


@triton.jit
def copy_state(
    places_ptr,
    row,
    request,
    node,
    first,
    programs,
    N: tl.constexpr,
    PARTS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy what a verification left of a node of a request to a state row, in one layer; below 0 there is none.

    A program takes every ``programs``-th tile, from ``first`` on. places_ptr i64[PARTS, WORDS]: of each tensor the
    address of what is kept and of what is pending, bytes from one state row to the next, from one request's pending
    states to the next and from one node's to the next, bytes of a state, of a piece of it, and from one pending piece
    to the next. A piece of 0 bytes says that a state lies together, in places that 16 divides.
    """
    if (row >= 0) & (node >= 0) & (node < N):
        for part in range(PARTS):
            place = places_ptr + part * WORDS
            size = tl.load(place + 5)
            piece = tl.load(place + 6)
            kept = tl.load(place) + row * tl.load(place + 2)
            pending = tl.load(place + 1) + request * tl.load(place + 3) + node * tl.load(place + 4)
            if piece == 0:
                copy_whole(kept, pending, size, first, programs, BLOCK)
            else:
                copy_pieces(kept, pending, size // 2, piece // 2, tl.load(place + 7) // 2, first, programs, BLOCK)


@triton.jit
def copy_whole(kept, pending, size, first, programs, BLOCK: tl.constexpr):
    """Copy so many bytes, which lie together; 16 divides their number and both addresses."""
    units = tl.multiple_of(size // 8, 2)  # so the mask is the same for two of them, which are loaded at once
    target = tl.multiple_of(kept.to(tl.pointer_type(tl.int64)), 16)
    source = tl.multiple_of(pending.to(tl.pointer_type(tl.int64)), 16)
    for tile in range(first, tl.cdiv(units, BLOCK), programs):
        unit = tile * BLOCK + tl.arange(0, BLOCK)
        tl.store(target + unit, tl.load(source + unit, mask=unit < units), mask=unit < units)


@triton.jit
def copy_pieces(kept, pending, units, piece, apart, first, programs, BLOCK: tl.constexpr):
    """Copy so many units of 2 bytes, of which every ``piece`` lie together and begin ``apart`` units after the last."""
    target = kept.to(tl.pointer_type(tl.int16))
    source = pending.to(tl.pointer_type(tl.int16))
    for tile in range(first, tl.cdiv(units, BLOCK), programs):
        unit = tile * BLOCK + tl.arange(0, BLOCK)
        at = unit // piece * apart + unit % piece
        tl.store(target + unit, tl.load(source + at, mask=unit < units), mask=unit < units)
