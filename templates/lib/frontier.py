"""The frontier of a draft tree: which candidates are kept, and what they inherit from their parents."""

import triton
import triton.language as tl

from .topk import NO_KEY


@triton.jit
def places(key, K: tl.constexpr, COUNT: tl.constexpr):
    """The place i32[COUNT] of every key i64[COUNT] by descending key; K or more for all but the first K.

    Keys are those of topk.py, at least K of them not NO_KEY. Up to 64 keys are compared pairwise, which waits for
    two exchanges between threads; more would take too many registers and are picked one by one.
    """
    if COUNT <= 64:
        place = tl.sum((key[None, :] > key[:, None]).to(tl.int32), axis=1)
    else:
        place = tl.full([COUNT], K, tl.int32)
        for j in range(K):
            winner = tl.max(key, axis=0)
            place = tl.where(key == winner, j, place)
            key = tl.where(key == winner, NO_KEY, key)
    return place


@triton.jit
def gather_rows(source_ptr, target_ptr, parent, K: tl.constexpr, W: tl.constexpr, BLOCK_W: tl.constexpr):
    """Row j of T[K, W] at `target_ptr` becomes row parent[j] of T[K, W] at `source_ptr`, for j < K.

    `parent` is i32[next power of 2 of K]. A chunk of all rows is loaded before any of it is stored: many loads at
    a time, one wait.
    """
    row = tl.arange(0, triton.next_power_of_2(K))
    for chunk in range((W + BLOCK_W - 1) // BLOCK_W):
        w = chunk * BLOCK_W + tl.arange(0, BLOCK_W)
        inside = (row < K)[:, None] & (w < W)[None, :]
        x = tl.load(source_ptr + parent[:, None] * W + w[None, :], mask=inside)
        tl.store(target_ptr + row[:, None] * W + w[None, :], x, mask=inside)
