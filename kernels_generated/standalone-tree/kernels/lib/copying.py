"""Copying rows of bytes between addresses: in the widest units that their alignment allows, whatever their dtype."""

import triton
import triton.language as tl


@triton.constexpr_function
def units(size):
    """The type of a pointer to units of 1, 2, 4 or 8 bytes."""
    return tl.pointer_type({1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}[size])


@triton.jit
def buffer_base(pointers_ptr, buffer, UNIT: tl.constexpr, ALIGN: tl.constexpr):
    """Start of a KV buffer, an entry of the i64 table of addresses, as a pointer to units."""
    # The fact about alignment must stand on the cast itself: on the result of a call it would be lost.
    return tl.multiple_of(tl.load(pointers_ptr + buffer).to(units(UNIT)), ALIGN)


@triton.jit
def slot_offset(slots, stride, UNIT: tl.constexpr, ALIGN: tl.constexpr):
    """Units from the start of a buffer to slots, i64 tensor; ``stride`` is the bytes from slot to slot."""
    return tl.multiple_of(slots * (stride // UNIT), ALIGN // UNIT)


@triton.jit
def copy_value(
    source_ptr,
    target_ptr,
    source_row,
    target_row,
    valid,
    real,
    chunk,
    ROW: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Columns ``chunk`` of rows of ROW bytes: source_row i64[R] to target_row i64[R], where valid i1[R].

    The other rows that are real i1[R] become zero: what memory held before may be NaN, and attention multiplies keys
    and values that it masks by zero. A chunk that the rows do not have is no chunk: nothing happens.
    """
    UNITS: tl.constexpr = ROW // UNIT
    if (chunk >= 0) & (chunk < (UNITS + BLOCK - 1) // BLOCK):
        column = chunk * BLOCK + tl.arange(0, BLOCK)
        inside = (column < UNITS)[None, :]
        source = source_ptr.to(units(UNIT)) + source_row * UNITS
        target = target_ptr.to(units(UNIT)) + target_row * UNITS
        tile = tl.load(source[:, None] + column[None, :], mask=valid[:, None] & inside, other=0)
        tl.store(target[:, None] + column[None, :], tile, mask=real[:, None] & inside)
