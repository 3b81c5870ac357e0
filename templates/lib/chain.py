"""The `chain` ops on what one program has in registers of a request; blocks are as rows.py says."""

import triton
import triton.language as tl


@triton.jit
def chain_root(bonus, A: tl.constexpr):
    """Tokens i64[A]: the bonus token, 0 after it."""
    return tl.where(tl.arange(0, triton.next_power_of_2(A)) == 0, bonus.to(tl.int64), 0)


@triton.jit
def chain_start(bonus, token, A: tl.constexpr):
    """Tokens i64[A]: the bonus token, the first draft i64[1], 0 after them."""
    c = tl.arange(0, triton.next_power_of_2(A))
    return tl.where(c == 0, bonus.to(tl.int64), tl.where(c == 1, token, 0))


@triton.jit
def chain_first(token, S: tl.constexpr):
    """Drafts i64[S]: the first i64[1], 0 after it."""
    return tl.where(tl.arange(0, triton.next_power_of_2(S)) == 0, token, 0)


@triton.jit
def chain_append(tokens, token, column, SIZE_TOKENS: tl.constexpr):
    """Tokens i64[SIZE_TOKENS] with column `column` replaced by the token i64[1]."""
    return tl.where(tl.arange(0, triton.next_power_of_2(SIZE_TOKENS)) == column, token, tokens)


@triton.jit
def chain_join(bonus, drafts, S: tl.constexpr, A: tl.constexpr):
    """Tokens i64[A]: the bonus token, then the first A - 1 of the drafts i64[S]."""
    c = tl.arange(0, triton.next_power_of_2(A))
    moved = tl.gather(drafts, tl.minimum(tl.maximum(c - 1, 0), S - 1), 0)
    return tl.where(c == 0, bonus.to(tl.int64), moved)


@triton.jit
def chain_shift(tokens, accept_lens, token, A: tl.constexpr):
    """Tokens i64[A] one further in the text up to the accepted length, where the token i64[1] follows."""
    c = tl.arange(0, triton.next_power_of_2(A))
    end = accept_lens - 1
    moved = tl.gather(tokens, tl.minimum(c + 1, A - 1), 0)
    return tl.where(c == end, token, tl.where(c < end, moved, tokens))
