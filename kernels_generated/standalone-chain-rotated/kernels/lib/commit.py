"""The `commit` ops on what one program has in registers of a request; blocks are as rows.py says."""

import triton
import triton.language as tl


@triton.jit
def commit_compact(x, accept_index, b, N: tl.constexpr, A: tl.constexpr):
    """Entries of T[N] along the accepted path i32[A], 0 past it and past A, for they may be flags."""
    node = tl.minimum(tl.maximum(accept_index - b * N, 0), N - 1)
    inside = (accept_index >= 0) & (tl.arange(0, triton.next_power_of_2(A)) < A)
    return tl.where(inside, tl.gather(x, node, 0), 0).to(x.dtype)


@triton.jit
def commit_last(x, accept_index, accept_lens, b, A: tl.constexpr, SIZE_X: tl.constexpr):
    """The entry of T[SIZE_X] at the last node of the accepted path i32[A]; 0 without one."""
    i = tl.arange(0, triton.next_power_of_2(A))
    node = tl.sum(tl.where(i == accept_lens - 1, accept_index - b * SIZE_X, 0), axis=0)
    c = tl.arange(0, triton.next_power_of_2(SIZE_X))
    return tl.sum(tl.where((c == node) & (accept_lens > 0), x, 0), axis=0).to(x.dtype)


@triton.jit
def commit_lengths(seq_lens, accept_lens, predict, A: tl.constexpr):
    """The new length i64 and the last emitted token i32; 0 and 0 where nothing is accepted."""
    i = tl.arange(0, triton.next_power_of_2(A))
    bonus = tl.sum(tl.where(i == accept_lens - 1, predict, 0), axis=0)
    return tl.where(accept_lens > 0, seq_lens + accept_lens, 0), tl.where(accept_lens > 0, bonus, 0)


@triton.jit
def commit_extend_ids(predict, accept_lens, A: tl.constexpr):
    """The emitted tokens i32[A] as i64[A], 0 past the accepted length."""
    i = tl.arange(0, triton.next_power_of_2(A))
    return tl.where(i < accept_lens, predict, 0).to(tl.int64)


@triton.jit
def commit_select(accept_lens, b, A: tl.constexpr):
    """The flat extend row i64 of the last accepted node."""
    return b.to(tl.int64) * A + tl.maximum(accept_lens - 1, 0)
