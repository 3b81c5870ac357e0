"""Where packed rows of logits lie for launches in which a program reads others than its own row of a request.

Pointers are as those of `packed_row`: rows of a request begin there, as if they lay by request.
"""

import triton
import triton.language as tl

from .budget import packed_at
from .residual import row_of


@triton.jit
def packed_rows(logits_ptr, b, lens_ptr, starts_ptr, ROWS: tl.constexpr, STRIDE: tl.constexpr):
    """Pointers for every row of a request, up to a power of 2 of them."""
    column = tl.minimum(tl.arange(0, triton.next_power_of_2(ROWS)), ROWS - 1)
    return packed_at(logits_ptr, b, column, lens_ptr, starts_ptr, ROWS, STRIDE)


@triton.jit
def packed_weighted(
    logits_ptr,
    weights_ptr,
    b,
    program,
    programs,
    lens_ptr,
    starts_ptr,
    MOST: tl.constexpr,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """The pointer for the row of the node with a weight that this program scans, of MOST; any without such a node."""
    c = row_of(weights_ptr, b, program // (programs // MOST), ROWS)
    return packed_at(logits_ptr, b, c, lens_ptr, starts_ptr, ROWS, STRIDE)
