"""The drafts of a chain without the bonus token; blocks are as rows.py says."""

import triton
import triton.language as tl


@triton.jit
def chain_drafts(tokens, SIZE_TOKENS: tl.constexpr, S: tl.constexpr):
    """Drafts i64[S]: the tokens i64[SIZE_TOKENS] behind the first."""
    c = tl.arange(0, triton.next_power_of_2(S))
    return tl.gather(tokens, tl.minimum(c + 1, SIZE_TOKENS - 1), 0)
