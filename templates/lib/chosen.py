"""One row of logits of the ROWS that a request has, chosen by a number: nobody copies it, it is read where it is.

A reduction of such a row counts one row per request. It is given memory that `chosen_row` has shifted, so that row b is
the chosen one, and what changes the logits before it the number of the row among all rows, of `vocab_row`.
"""

import triton
import triton.language as tl


@triton.jit
def vocab_row(row, at_ptr, ROWS: tl.constexpr):
    """Which of all rows T[B * ROWS, V] request `row` i32, a scalar or a block, has chosen by i64[B]: see the op."""
    at = tl.load(at_ptr + row)
    return row * ROWS + tl.minimum(tl.maximum(at, 0), ROWS - 1).to(tl.int32)


@triton.jit
def chosen_row(logits_ptr, b, at_ptr, ROWS: tl.constexpr, STRIDE: tl.constexpr):
    """Where rows STRIDE apart would begin if row b were the one that request b has chosen."""
    # 64-bit: B * ROWS * STRIDE may pass 2**31.
    return logits_ptr + (vocab_row(b, at_ptr, ROWS) - b).to(tl.int64) * STRIDE
