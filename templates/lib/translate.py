"""From numbers of a reduced vocabulary to tokens, on what one program has in registers of a request."""

import triton
import triton.language as tl


@triton.jit
def vocab_translate(index, rows, map_ptr, SIZE_MAP: tl.constexpr):
    """The tokens i64 that entries of a reduced vocabulary stand for; 0 of padding, and of lanes past a block's end."""
    token = tl.load(map_ptr + tl.minimum(tl.maximum(index, 0), SIZE_MAP - 1))
    return tl.where(rows > 0, token, 0)
