"""The tree of a request whose places were filled in all at once: the best products of their candidates.

One lane stands for one node. Candidates of a place are descending, so no path is better than its parent, nor than its
next better sibling: the best paths are found one after the other among what nodes offer.
"""

import triton
import triton.language as tl

from .best import NO_KEY, key_index, sort_key


@triton.jit
def candidate(flat, place, rank, KP: tl.constexpr):
    """The entry of f32[S * KP] of a place and a rank; 0 where there is none."""
    return tl.sum(tl.where(tl.arange(0, flat.shape[0]) == place * KP + rank, flat, 0.0), axis=0)


@triton.jit
def tree_product(rows, bonus, p, index, STEPS: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    """Tokens, parents and depths i64[N] of the root and the N - 1 best paths, best first; padding: 0, -1, 0."""
    tokens, parent, depth, _ = product_nodes(rows, bonus, p, index, STEPS, K, N)
    return tokens, parent, depth


@triton.jit
def tree_product_scored(b, rows, bonus, p, index, scores_ptr, STEPS: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    """The same, and the paths' scores f32[B, N - 1] in memory; padding: 0."""
    tokens, parent, depth, score = product_nodes(rows, bonus, p, index, STEPS, K, N)
    node = tl.arange(0, triton.next_power_of_2(N))
    inside = (node > 0) & (node < N)
    tl.store(scores_ptr + b * (N - 1) + node - 1, tl.where(rows != 0, score, 0.0), mask=inside)
    return tokens, parent, depth


@triton.jit
def product_nodes(rows, bonus, p, index, STEPS: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    """What `tree_product` gives, and the scores f32[N] of the paths.

    A node offers its next sibling (key 2 * node) and its first child (key 2 * node + 1), in the order of `sort_key`.
    What a new node is, is found in its origin's lane: parent, depth and rank share a word.
    """
    NODES: tl.constexpr = triton.next_power_of_2(N)
    KP: tl.constexpr = p.shape[1]
    flat = tl.reshape(p, [p.shape[0] * KP])
    node = tl.arange(0, NODES)
    parent = tl.full([NODES], -1, tl.int32)
    depth = tl.zeros([NODES], tl.int32)
    rank = tl.zeros([NODES], tl.int32)
    score = tl.where(node == 0, 1.0, 0.0)
    above = tl.zeros([NODES], tl.float32)
    sibling = tl.full([NODES], NO_KEY, tl.int64)
    child = tl.where(node == 0, sort_key(candidate(flat, 0, 0, KP), 2 * node + 1), NO_KEY)
    for column in range(1, N):
        offered = key_index(tl.max(tl.maximum(sibling, child), axis=0))
        origin, grows = offered // 2, offered % 2
        here = node == origin
        known = tl.sum(tl.where(here, ((parent + 1) * 1024 + depth) * 1024 + rank, 0), axis=0)
        base = tl.sum(tl.where(here, tl.where(grows == 1, score, above), 0.0), axis=0)
        of = tl.where(grows == 1, 0, known % 1024 + 1)
        level = known // 1024 % 1024 + grows
        mine = base * candidate(flat, level - 1, of, KP)
        next_sibling = base * candidate(flat, level - 1, of + 1, KP)
        next_child = mine * candidate(flat, level, 0, KP)
        new = node == column
        sibling = tl.where(here & (grows == 0), NO_KEY, sibling)
        sibling = tl.where(new & (of + 1 < K), sort_key(next_sibling, 2 * node), sibling)
        child = tl.where(here & (grows == 1), NO_KEY, child)
        child = tl.where(new & (level < STEPS), sort_key(next_child, 2 * node + 1), child)
        parent = tl.where(new, tl.where(grows == 1, origin, known // (1024 * 1024) - 1), parent)
        depth = tl.where(new, level, depth)
        rank = tl.where(new, of, rank)
        score = tl.where(new, mine, score)
        above = tl.where(new, base, above)
    live = rows != 0
    tokens = tl.gather(tl.reshape(index, [p.shape[0] * KP]), tl.maximum(depth - 1, 0) * KP + rank, 0)
    tokens = tl.where(node == 0, bonus.to(tl.int64), tokens)
    parent = tl.where(live, parent, -1)
    return tl.where(live, tokens, 0), parent.to(tl.int64), tl.where(live, depth, 0).to(tl.int64), score
