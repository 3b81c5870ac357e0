"""The `walk` ops, and `verify.path`, on what one program has in registers of a request; blocks are as rows.py says."""

import triton
import triton.language as tl


@triton.jit
def walk_root(rows):
    """The root's column i64; -1 of padding."""
    return tl.where(rows != 0, 0, -1).to(tl.int64)


@triton.jit
def walk_step(tokens, token, rows, node, parent, SIZE_TOKENS: tl.constexpr):
    """The request's row i64 and the column i64 of the first child of `node` with the token, or 0 and -1: see the op."""
    c = tl.arange(0, triton.next_power_of_2(SIZE_TOKENS))
    if parent is None:
        parent = (c - 1).to(tl.int64)
    agrees = (c > 0) & (c < SIZE_TOKENS) & (parent == node) & (tokens == token.to(tl.int64))
    child = tl.min(tl.where(agrees, c, SIZE_TOKENS), axis=0)
    found = (child < SIZE_TOKENS) & (node >= 0) & (rows != 0)
    return tl.where(found, rows, 0), tl.where(found, child, -1).to(tl.int64)


@triton.jit
def walk_at(x, node, SIZE_X: tl.constexpr):
    """The element of a block T[SIZE_X] that column `node` i64 has; 0 without one."""
    c = tl.arange(0, triton.next_power_of_2(SIZE_X))
    return tl.sum(tl.where((c == node) & (c < SIZE_X), x, 0), axis=0)


@triton.jit
def walk_bad(bad, accept_index, b, SIZE_BAD: tl.constexpr, A: tl.constexpr):
    """Whether one of the flags i1[SIZE_BAD] of a path's nodes, numbers of all requests' i32[A], is set."""
    c = tl.arange(0, triton.next_power_of_2(SIZE_BAD))
    slot = tl.arange(0, triton.next_power_of_2(A))
    node = tl.where((slot < A) & (accept_index >= 0), accept_index - b * SIZE_BAD, -1)
    visited = tl.max((node[:, None] == c[None, :]).to(tl.int32), axis=0)
    return tl.max(tl.where(bad, visited, 0), axis=0) != 0


@triton.jit
def verify_path(tokens_ptrs, tokens_late, nodes_ptrs, b, SIZE_PREDICT: tl.constexpr, A: tl.constexpr):
    """Of the nodes i64 that a walk has visited, -1 past its end, and the tokens i32 after them: predict i32, the path
    i32[A] and its length i32, as `verify_greedy` gives them.

    Pointers to [B]; the last token comes in `tokens_late` if this kernel has it.
    """
    c = tl.arange(0, triton.next_power_of_2(SIZE_PREDICT))
    slot = tl.arange(0, triton.next_power_of_2(A))
    predict = tl.zeros_like(c)
    path = tl.zeros_like(slot) - 1
    for i in tl.static_range(len(nodes_ptrs)):
        node = tl.load(nodes_ptrs[i] + b)
        token = tl.load(tokens_ptrs[i] + b) if i < len(tokens_ptrs) else tokens_late
        predict = tl.where(c == node, token, predict)
        here = (slot == i) & (node >= 0) & (node < SIZE_PREDICT)
        path = tl.where(here, b * SIZE_PREDICT + node.to(tl.int32), path)
    return predict, path, tl.sum((path >= 0).to(tl.int32), axis=0)
