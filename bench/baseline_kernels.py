"""Triton kernels of our own that do what SGLang 0.5.23's kernels do in a tree step, in as many launches or fewer.

The tree builder and the walk are CUDA there: one block per request, of which one thread links the nodes one after the
other, or walks. Here the builder works on all nodes at once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gather_extras(
    rows,
    p,
    index,
    bonus,
    hidden,
    out_p,
    out_index,
    out_bonus,
    out_hidden,
    K: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """gather_spec_extras: four relayed fields of each request. Grid (B, cdiv(max(W, K), BLOCK))."""
    b = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + b)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_hidden + b * W + column, tl.load(hidden + row * W + column, column < W), column < W)
    tl.store(out_p + b * K + column, tl.load(p + row * K + column, column < K), column < K)
    tl.store(out_index + b * K + column, tl.load(index + row * K + column, column < K), column < K)
    tl.store(out_bonus + b + column, tl.load(bonus + row + column, column < 1), column < 1)


@triton.jit
def window_slots(rows, table, seq_lens, out, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """assign_draft_cache_locs_contiguous, assign_extend_cache_locs_uniform: WIDTH slots from seq_len on. Grid (B,)."""
    b = tl.program_id(0).to(tl.int64)
    source = table + tl.load(rows + b) * stride + tl.load(seq_lens + b)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        slots = tl.load(source + column, column < WIDTH)
        tl.store(out + b * WIDTH + column, slots.to(tl.int64), column < WIDTH)


@triton.jit(do_not_specialize=["offset"])
def follow_kept(
    kept,
    index,
    hidden,
    out_ids,
    out_parents,
    out_hidden,
    offset,
    K: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What _select_top_k_tokens_later gathers after its top-k: token, parent id, hidden row. Grid (B * K, chunks)."""
    slot = tl.program_id(0).to(tl.int64)
    request = slot // K
    candidate = tl.load(kept + slot)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(hidden + (request * K + candidate // K) * W + column, column < W)
    tl.store(out_hidden + slot * W + column, values, column < W)
    if tl.program_id(1) == 0:
        tl.store(out_ids + slot, tl.load(index + request * K * K + candidate))
        tl.store(out_parents + slot, candidate + offset)


@triton.jit
def build_tree(
    parents,
    selected,
    seq_lens,
    mask,
    positions,
    index,
    first,
    sibling,
    K: tl.constexpr,
    S: tl.constexpr,
    N: tl.constexpr,
    WIDE: tl.constexpr,
):
    """build_tree_efficient, N x N mask: links, depths and mask of the N nodes. Grid (B,); WIDE is a power of two."""
    b = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, WIDE)
    real = (node > 0) & (node < N)
    chosen = tl.load(selected + b * (N - 1) + node - 1, real, other=-1).to(tl.int32)
    group = tl.where(real, chosen // K, 0)
    above = tl.load(parents + b * (K * (S - 1) + 1) + group, real & (group > 0), other=-2).to(tl.int32)
    found = (chosen[None, :] == above[:, None]) & real[None, :]
    parent = tl.max(tl.where(found, node[None, :], -1), 1)
    parent = tl.where(real, tl.where(group == 0, 0, parent), -1)
    child = tl.min(tl.where(parent[None, :] == node[:, None], node[None, :], WIDE), 1)
    beside = (parent[None, :] == parent[:, None]) & (node[None, :] > node[:, None]) & real[:, None]
    following = tl.min(tl.where(beside, node[None, :], WIDE), 1)
    base, inside = b * N, node < N
    tl.store(index + base + node, base + node, inside)
    tl.store(first + base + node, tl.where(child < WIDE, child, -1).to(tl.int64), inside)
    tl.store(sibling + base + node, tl.where((following < WIDE) & (parent >= 0), following, -1).to(tl.int64), inside)
    attends = (node[None, :] == node[:, None]) | (node[None, :] == 0)
    current, depth = node, tl.zeros_like(node)
    for _ in range(S):
        depth += (current > 0).to(tl.int32)
        up = tl.sum(tl.where(current[:, None] == node[None, :], parent[None, :], 0), 1)
        current = tl.where(current > 0, up, 0)
        attends = attends | (current[:, None] == node[None, :])
    tl.store(positions + base + node, tl.load(seq_lens + b) + depth, inside)
    cell = (base + node[:, None]) * N + node[None, :]
    tl.store(mask + cell, attends.to(tl.uint8), inside[:, None] & inside[None, :])


@triton.jit
def walk_tree(tokens, target, index, first, sibling, predict, accept_index, correct, N: tl.constexpr, A: tl.constexpr):
    """VerifyTreeGreedy: follow the child that the target chose, as long as there is one. Grid (B,)."""
    b = tl.program_id(0).to(tl.int64)
    base = b * N
    tl.store(accept_index + b * A, tl.load(index + base).to(tl.int32))
    node = b * 0
    child = tl.load(first + base)
    count = 0
    while child != -1:
        wanted = tl.load(target + base + node)
        if tl.load(tokens + base + child) == wanted:
            tl.store(predict + base + node, wanted.to(tl.int32))
            node = child
            count += 1
            tl.store(accept_index + b * A + count, tl.load(index + base + node).to(tl.int32))
            child = tl.load(first + base + node)
        else:
            child = tl.load(sibling + base + child)
    tl.store(predict + base + node, tl.load(target + base + node).to(tl.int32))
    tl.store(correct + b, count)


@triton.jit(do_not_specialize=["count"])
def commit_outputs(
    predict,
    accept_index,
    accept_lens,
    seq_lens,
    new_seq_lens,
    bonus,
    count,
    A: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """prepare_verify_commit_outputs for a tree: lengths and bonus. Grid (cdiv(B, BLOCK),)."""
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = b < count
    accepted = tl.load(accept_lens + b, valid, other=1)
    last = tl.load(accept_index + b * A + accepted - 1, valid, other=0)
    tl.store(new_seq_lens + b, tl.load(seq_lens + b, valid) + accepted, valid)
    tl.store(bonus + b, tl.load(predict + last, valid), valid)


@triton.jit
def pack_windows(rows, table, starts, ends, out, stride, UPPER: tl.constexpr, WIDE: tl.constexpr):
    """assign_extend_cache_locs: entries starts..ends of each row, one request after the other. Grid (B,)."""
    b = tl.program_id(0)
    other = tl.arange(0, UPPER)
    lengths = tl.load(ends + other, other < b, other=0) - tl.load(starts + other, other < b, other=0)
    start, end = tl.load(starts + b), tl.load(ends + b)
    column = tl.arange(0, WIDE)
    source = table + tl.load(rows + b) * stride + start + column
    tl.store(out + tl.sum(lengths) + column, tl.load(source, column < end - start), column < end - start)


@triton.jit
def pack_accepted(accept_index, slots, out, UPPER: tl.constexpr):
    """fill_accept_out_cache_loc: slots of accepted nodes, one after the other. Grid (B * A,)."""
    place = tl.program_id(0)
    before = tl.arange(0, UPPER)
    rank = tl.sum((tl.load(accept_index + before, before < place, other=-1) != -1).to(tl.int32))
    node = tl.load(accept_index + place)
    if node > -1:
        tl.store(out + rank, tl.load(slots + node))


@triton.jit(do_not_specialize=["count"])
def move_rows(pointers, targets, sources, count, WORDS: tl.constexpr, TILE: tl.constexpr, UPPER: tl.constexpr):
    """copy_all_layer_kv_cache_tiled: rows of WORDS i64, all read first. Grid (buffers, cdiv(WORDS, TILE))."""
    base = tl.load(pointers + tl.program_id(0)).to(tl.pointer_type(tl.int64))
    word = tl.program_id(1) * TILE + tl.arange(0, TILE)
    place = tl.arange(0, UPPER)
    source = tl.load(sources + place, place < count, other=0).to(tl.int64)
    target = tl.load(targets + place, place < count, other=0).to(tl.int64)
    valid = (place < count)[:, None] & (word < WORDS)[None, :]
    values = tl.load(base + source[:, None] * WORDS + word[None, :], valid)
    tl.store(base + target[:, None] * WORDS + word[None, :], values, valid)


@triton.jit(do_not_specialize=["count"])
def extend_layout(
    predict,
    accept_lens,
    seq_lens,
    ids,
    positions,
    select,
    post_lens,
    count,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """prepare_draft_extend_inputs and prepare_draft_extend_layout in one. Grid (cdiv(B * N, BLOCK),)."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token, request = row < count * N, row < count
    tl.store(ids + row, tl.load(predict + row, token).to(tl.int64), token)
    tl.store(positions + row, tl.load(seq_lens + row // N, token) + row % N, token)
    tl.store(select + row, row.to(tl.int64) * N + tl.load(accept_lens + row, request) - 1, request)
    tl.store(post_lens + row, tl.load(seq_lens + row, request) + N, request)
