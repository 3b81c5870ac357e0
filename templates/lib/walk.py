"""The walk that verifies a tree or a chain: from the root, always to the child that holds the target's token."""

import triton
import triton.language as tl


@triton.jit
def walk(target, token, parent, N: tl.constexpr, A: tl.constexpr):
    """The accepted path, root first: (path i32, predict i32, drafts i32, bonus i32).

    target i32, token i64 and parent i64 are blocks over the columns, N rounded up to a power of 2: the target's token
    after the column, the column's own token, its parent's column. parent must be negative at column 0 and from
    N on, which makes them nobody's child. path and predict are blocks over the slots, A rounded up likewise: the
    column and the target's token after it, -1 and 0 beyond the path, which has drafts + 1 nodes; bonus is the last
    of these tokens. Of several children that agree the lowest column is taken. Whatever the operands hold: A - 1 levels
    and columns below N.
    """
    c = tl.arange(0, triton.next_power_of_2(N))
    slot = tl.arange(0, triton.next_power_of_2(A))
    # A column and its target token in one number: the lowest column that agrees and its token come out of one
    # reduction. The reductions wait for each other, and nothing else here takes time.
    step = (c.to(tl.int64) << 32) | target.to(tl.int64)
    NONE: tl.constexpr = N << 32
    column = 0
    bonus = tl.sum(tl.where(c == 0, target, 0), axis=0)
    path = tl.where(slot == 0, 0, -1)
    predict = tl.where(slot == 0, bonus, 0)
    drafts = 0
    for level in range(1, A):
        agrees = (parent == column) & (token == bonus)
        found = tl.min(tl.where(agrees, step, NONE), axis=0)
        # A walk that ends stays where it is: on later levels it finds nothing again.
        goes_on = found < NONE
        column = tl.where(goes_on, (found >> 32).to(tl.int32), column)
        bonus = tl.where(goes_on, (found & 0x7FFFFFFF).to(tl.int32), bonus)
        reached = goes_on & (slot == level)
        path = tl.where(reached, column, path)
        predict = tl.where(reached, bonus, predict)
        drafts += goes_on.to(tl.int32)
    return path, predict, drafts, bonus


@triton.jit
def follow(target, child, N: tl.constexpr):
    """What `walk` gives, of a chain: node c has one child, with token child i64, the last node none (-1).

    All are blocks over the nodes, N rounded up to a power of 2, which are the slots of the path.
    """
    c = tl.arange(0, triton.next_power_of_2(N))
    # The number of accepted drafts is the first c whose child is not the token that the target puts after node c; the
    # last node, without a child, always stops.
    drafts = tl.min(tl.where(child == target.to(tl.int64), N - 1, c), axis=0)
    path = tl.where(c <= drafts, c, -1)
    predict = tl.where(c <= drafts, target, 0)
    # The one token at column `drafts`, out of a register block: a sum with a single term.
    bonus = tl.sum(tl.where(c == drafts, target, 0), axis=0)
    return path, predict, drafts, bonus
