"""The `verify` ops on what one program has in registers of a request; blocks are as rows.py says."""

import triton
import triton.language as tl


@triton.jit
def follow(target, child, N: tl.constexpr):
    """How many drafts of a chain are accepted: node c has one child, with token child i64, the last node none (-1).

    target i32 and child are blocks over the nodes, N rounded up to a power of 2. It is the first c whose child is not
    the token that the target puts after node c; the last node, without a child, always stops.
    """
    c = tl.arange(0, triton.next_power_of_2(N))
    return tl.min(tl.where(child == target.to(tl.int64), N - 1, c), axis=0)


@triton.jit
def walk(target, edge, N: tl.constexpr, A: tl.constexpr):
    """The accepted path of a tree, root first: (columns i32, -1 past it; how many of them are drafts i32).

    Blocks over the columns, N rounded up to a power of 2: target i32, the target's token after the column, and edge
    i64, the column's parent in the upper half and its own token in the lower, negative for nobody's child. The path is
    a block over the slots, A rounded up likewise. Of several children that agree the lowest column is taken. Whatever
    the operands hold: A - 1 levels and columns below N.
    """
    c = tl.arange(0, triton.next_power_of_2(N))
    slot = tl.arange(0, triton.next_power_of_2(A))
    # A column and its target token in one number: the lowest column that agrees and its token come out of one
    # reduction. The reductions wait for each other, and nothing else here takes time.
    step = (c.to(tl.int64) << 32) | target.to(tl.int64)
    NONE: tl.constexpr = N << 32
    # Where the walk is: its column and the token that the target wants there.
    here = tl.sum(tl.where(c == 0, target, 0), axis=0).to(tl.int64)
    path = tl.where(slot == 0, 0, -1)
    drafts = 0
    for level in range(1, A):
        found = tl.min(tl.where(edge == here, step, NONE), axis=0)
        # A walk that ends stays where it is: on later levels it finds nothing again.
        goes_on = found < NONE
        here = tl.where(goes_on, found, here)
        path = tl.where(goes_on & (slot == level), (found >> 32).to(tl.int32), path)
        drafts += goes_on.to(tl.int32)
    return path, drafts


@triton.jit
def verify_greedy(tokens, argmax, rows, parent, b, SIZE_TOKENS: tl.constexpr, A: tl.constexpr):
    """The accepted path of a tree of nodes i64[SIZE_TOKENS], or of a chain if `parent` is None.

    Gives predict i32[SIZE_TOKENS], the target's token after each accepted node and 0 elsewhere, the path
    accept_index i32[A] as numbers of all requests' nodes, -1 past it, and its length i32. Padding: 0, -1, 0.
    """
    NODES: tl.constexpr = SIZE_TOKENS
    c = tl.arange(0, triton.next_power_of_2(NODES))
    slot = tl.arange(0, triton.next_power_of_2(A))
    if parent is None:
        child = tl.gather(tokens, tl.minimum(c + 1, NODES - 1), 0)
        drafts = follow(argmax, tl.where(c < NODES - 1, child, -1), NODES)
        if NODES > A:
            drafts = tl.minimum(drafts, A - 1)
        on_path = c <= drafts
        path = tl.where(slot <= drafts, slot, -1)
    else:
        # No token of a vocabulary is beyond 31 bits, and no parent beyond the nodes.
        real = (c > 0) & (c < NODES) & (parent >= 0) & (parent < NODES) & (tokens >> 31 == 0)
        path, drafts = walk(argmax, tl.where(real, (parent << 32) | tokens, -1), NODES, A)
        on_path = tl.max((path[:, None] == c[None, :]).to(tl.int32), axis=0) != 0
    live = rows != 0
    predict = tl.where(on_path & live, argmax, 0)
    accept_index = tl.where((path >= 0) & (slot < A) & live, b * NODES + path, -1)
    return predict, accept_index, tl.where(live, drafts + 1, 0)
