"""The `health` ops on what one program has in registers of a request."""

import triton
import triton.language as tl


@triton.jit
def health_clear(b):
    """A word i32 without bits."""
    return b * 0


@triton.jit
def any_of(flags):
    """Whether any of i1, i1[M] or i1[M, N] is true; past their sizes they are false."""
    found = flags.to(tl.int32)
    for _ in tl.static_range(len(flags.shape)):
        found = tl.max(found, axis=0)
    return found != 0


@triton.jit
def health_raise(health, bad, BIT: tl.constexpr):
    """The word i32 with bit BIT set if any flag is."""
    return tl.where(any_of(bad), health | (1 << BIT), health)


@triton.jit
def raise_in_place(health_ptr, bad, BIT: tl.constexpr):
    """Set bit BIT of the word i32 in memory if any flag is; otherwise it is not even read."""
    tl.atomic_or(health_ptr, 1 << BIT, mask=any_of(bad))
