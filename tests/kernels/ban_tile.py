"""Masked logits, as a plugin would bring them."""

import triton
import triton.language as tl


@triton.jit
def logits_ban(logits, column, row, banned_ptr, SIZE_BANNED: tl.constexpr):
    """The logits, -inf where they are banned i1[*, SIZE_BANNED]."""
    at = banned_ptr + row.to(tl.int64) * SIZE_BANNED + column
    return tl.where(tl.load(at, mask=column < SIZE_BANNED, other=0) != 0, float("-inf"), logits)
