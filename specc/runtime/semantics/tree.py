"""Reference semantics of the `tree.*` ops; `reference.py` explains the calling convention.

Candidates are numbered over all steps: step 0 gives 0..K-1, step i >= 1 gives K + K*K*(i-1) + c, where c // K is the
parent's place in the frontier of that step and c % K the rank among its children.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .convention import Attrs, Dims, Tensors, comparable, ranking, register, zero_rows


@register("tree.comb")
def tree_comb(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows i64[B] -> parent i64[B, N], depth i64[B, N] of K branches of `steps` nodes; padding rows: -1, 0."""
    (rows,) = operands
    place = torch.arange(-1, dims["N"] - 1, device=rows.device)
    depth = torch.where(place < 0, 0, place % int(attrs["steps"]) + 1)
    parent = torch.where(depth == 1, 0, place)
    active = (rows != 0)[:, None]
    return torch.where(active, parent, -1), torch.where(active, depth, 0)


@register("tree.grow")
def tree_grow(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Extend K paths by K tokens each and keep the best K: lowest candidate on ties, NaN as -inf.

    scores f32[B, K], p f32[B, K, K], index i64[B, K, K] -> tokens i64[B, K], scores f32[B, K], kept i64[B, K] (local
    candidate c in 0..K*K-1, by descending score), candidates f32[B, K, K] (every path score).
    """
    scores, p, index = operands
    candidates = scores[:, :, None] * p
    flat = candidates.flatten(1)
    kept = ranking(comparable(flat))[:, : dims["K"]].contiguous()
    tokens = index.flatten(1).gather(1, kept)
    return tokens, flat.gather(1, kept), kept, candidates


@register("tree.gather")
def tree_gather(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Values T[B, K, ...], kept i64[B, K] -> T[B, K, ...]: the row of every kept candidate's parent."""
    x, kept = operands
    requests = torch.arange(x.shape[0], device=x.device)[:, None]
    return (x[requests, kept // dims["K"]],)


@register("tree.positions")
def tree_positions(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Lengths i64[B], depth i64[B, N] -> i64[B, N]: seq_len + depth."""
    seq_lens, depth = operands
    return (seq_lens[:, None] + depth,)


@register("tree.select")
def tree_select(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Keep the N - 1 best candidates of all steps and link them under the root.

    Operands, with S = `steps`: rows i64[B]; bonus i32[B]; S scores (f32[B, K], then f32[B, K, K]); S tokens (i64[B, K],
    then i64[B, K, K]); S - 2 kept i64[B, K], those of steps 1 to S - 2.
    Results: tokens, parent and depth i64[B, N], orphan i1[B, N]. Columns follow ascending candidate id; column 0 is the
    root. `parent` is a column, -1 for the root and for an orphan: a kept candidate whose parent was not kept, which
    nothing can reach. Padding rows: tokens 0, parent -1, depth 0, no orphan.
    """
    scores = _scores(operands[2:], attrs)
    return _linked(operands, attrs, dims, ranking(comparable(scores))[:, : dims["N"] - 1].sort(dim=1).values)


@register("tree.select_scored")
def tree_select_scored(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """As `tree_select`, but columns follow descending score, the lower id first on ties; and scores f32[B, N - 1].

    A candidate whose parent's column is behind its own is an orphan, too: no candidate scores more than its parent.
    Padding rows: scores 0.
    """
    scores = _scores(operands[2:], attrs)
    best = ranking(comparable(scores))[:, : dims["N"] - 1]
    tokens, parent, depth, orphan = _linked(operands, attrs, dims, best)
    behind = parent > torch.arange(dims["N"], device=parent.device)
    parent = torch.where(behind, -1, parent)
    return tokens, parent, depth, orphan | behind, zero_rows(scores.gather(1, best), operands[0] == 0)


def _scores(parts: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The scores f32[B, candidates] of all steps, out of the parts that `tree_select` takes."""
    return torch.cat([part.flatten(1) for part in parts[: int(attrs["steps"])]], dim=1)


def _linked(operands: Tensors, attrs: Attrs, dims: Dims, best: Tensor) -> Tensors:
    """What `tree_select` gives of the candidates i64[B, N - 1] that are kept, in the order of their columns."""
    steps = int(attrs["steps"])
    rows, bonus, *parts = operands
    tokens = torch.cat([part.flatten(1) for part in parts[steps : 2 * steps]], dim=1)
    above = _parents(dims["K"], parts[2 * steps :], bonus).gather(1, best // dims["K"])
    columns = torch.arange(1, dims["N"], device=bonus.device)
    column = torch.where(best[:, None] == above[:, :, None], columns, -1).amax(dim=2)
    root, padding = torch.zeros_like(rows)[:, None], rows == 0
    parent = torch.cat([root - 1, torch.where(above < 0, 0, column)], dim=1)
    depth = torch.cat([root, _depth(best, dims["K"])], dim=1)
    chosen = torch.cat([bonus.to(torch.int64)[:, None], tokens.gather(1, best)], dim=1)
    return (
        zero_rows(chosen, padding),
        parent.masked_fill(padding[:, None], -1),
        zero_rows(depth, padding),
        zero_rows((parent < 0) & (depth > 0), padding),
    )


@register("tree.product")
def tree_product(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Choose the N - 1 best paths over S places, each of which has K candidates whatever the others are.

    Operands: rows i64[B]; bonus i32[B]; p f32[B, S, K] and index i64[B, S, K], descending at each place. Results:
    tokens, parent and depth i64[B, N]. Column 0 is the root. A node offers its first child, at the next place, and its
    next sibling; a path's score is that of its parent times p of its candidate. The best offer is taken N - 1 times,
    NaN as -inf; the lowest node's on ties, and its sibling before its child. Padding rows: 0, -1, 0.
    """
    return tree_product_scored(operands, attrs, dims)[:3]


@register("tree.product_scored")
def tree_product_scored(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """As `tree_product`, and the scores of the paths f32[B, N - 1]; 0 of padding rows."""
    rows, bonus, p, index = operands
    place, rank, parent, score = _product(p, dims["N"])
    picked = index[torch.arange(len(rows), device=rows.device)[:, None], place.clamp(min=0), rank]
    padding = rows == 0
    tokens = torch.where(place < 0, bonus.to(torch.int64)[:, None], picked)
    parent, depth = parent.masked_fill(padding[:, None], -1), zero_rows(place + 1, padding)
    return zero_rows(tokens, padding), parent, depth, zero_rows(score[:, 1:], padding)


def _product(p: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return places, ranks and parents i64[B, N] of all nodes, the root's -1, 0, -1, of candidates f32[B, S, K].

    And the scores of their paths, f32[B, N].

    Column 2 n of what is offered is the next sibling of node n, and column 2 n + 1 its first child.
    """
    batch, steps, branches = p.shape
    place = torch.full((batch, nodes), -1, dtype=torch.int64, device=p.device)
    rank, parent = torch.zeros_like(place), place.clone()
    score = torch.ones((batch, nodes), dtype=p.dtype, device=p.device)
    numbers = torch.arange(2 * nodes, device=p.device)
    offered = p.new_full((batch, 2 * nodes), -torch.inf)
    there = torch.zeros_like(offered, dtype=torch.bool)

    def entry(at: Tensor, of: Tensor) -> Tensor:
        return p.flatten(1).gather(1, at.clamp(max=steps - 1) * branches + of.clamp(max=branches - 1))

    def offer(number: int, at: Tensor, of: Tensor, base: Tensor) -> None:
        offered[:, number, None] = comparable(base * entry(at, of))
        there[:, number, None] = (at < steps) & (of < branches)

    first = torch.zeros_like(place[:, :1])
    offer(1, first, first, score[:, :1])
    for column in range(1, nodes):
        best = torch.where(there, offered, -torch.inf).amax(1, keepdim=True)
        taken = torch.where(there & (offered == best), numbers, 2 * nodes - 1).amin(1, keepdim=True)
        there.logical_and_(numbers != taken)
        node, child = taken // 2, taken % 2
        at, of = place.gather(1, node) + child, torch.where(child == 1, 0, rank.gather(1, node) + 1)
        below = torch.where(child == 1, node, parent.gather(1, node))
        base = score.gather(1, below)
        mine = base * entry(at, of)
        for nodes_of, new in ((place, at), (rank, of), (parent, below), (score, mine)):
            nodes_of[:, column, None] = new
        offer(2 * column, at, of + 1, base)
        offer(2 * column + 1, at + 1, first, mine)
    return place, rank, parent, score


@register("tree.mask")
def tree_mask(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Lengths i64[B], parent i64[B, N] -> the columns every node attends to: itself, its ancestors, column 0.

    `mode` qlen: i1[B, N, N]. bitpacked: u8[B, N, width], bit j of the little-endian word is column j. full: i1[B,
    width] read flat: for each request N rows of seq_len + N entries, of which the first seq_len are set, one request
    after the other; what is left over is unspecified.
    """
    seq_lens, parent = operands
    count, nodes = parent.shape
    mask, columns = _seen(parent), torch.arange(nodes, device=parent.device)
    if attrs["mode"] == "qlen":
        return (mask,)
    if attrs["mode"] == "bitpacked":
        width = int(attrs["width"])
        bits = torch.nn.functional.pad(mask, (0, 8 * width - nodes)).view(count, nodes, width, 8).to(torch.uint8)
        return ((bits << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(-1).to(torch.uint8),)
    width, length = int(attrs["width"]), seq_lens[:, None, None] + nodes
    end = (length * nodes).cumsum(0)
    left = end[-1:].flatten(1) - width * torch.arange(count, device=parent.device)[:, None]
    flat = (torch.arange(width, device=parent.device) < left).flatten()
    own = (end - length * nodes + columns[:, None] * length + seq_lens[:, None, None] + columns).flatten()
    return (flat.index_copy(0, own, mask.flatten()).view(count, width),)


@register("tree.seen_slots")
def tree_seen_slots(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Slots i64[B, N], parent i64[B, N] -> slots of the columns every node attends to i32[B, N, N], counts i32[B, N].

    The columns are those of `tree.mask`. Their slots stand first, ascending by column; entries from `counts` on are 0.
    """
    slots, parent = operands
    seen = _seen(parent)
    place = torch.where(seen, seen.cumsum(2) - 1, seen.shape[2])  # of what is not seen behind the last entry
    dense = torch.zeros(*parent.shape, seen.shape[2] + 1, dtype=torch.int32, device=slots.device)
    dense.scatter_(2, place, slots[:, None].expand(seen.shape).to(torch.int32))
    return dense[..., :-1].contiguous(), seen.sum(2, dtype=torch.int32)


def _seen(parent: Tensor) -> Tensor:
    """Of parents i64[B, N] bool[B, N, N]: node, column that it attends to. Walks end, whatever the parents say."""
    nodes = parent.shape[1]
    columns = torch.arange(nodes, device=parent.device)
    mask = (columns == columns[:, None]) | (columns == 0) | (columns == parent[..., None])
    above = parent  # as many levels as the mask covers, which doubles
    for _ in range(nodes.bit_length()):
        at, there = above.clamp(min=0), above >= 0
        mask = mask | (mask.gather(1, at[..., None].expand_as(mask)) & there[..., None])
        above = torch.where(there, above.gather(1, at), -1)
    return mask


def _parents(branches: int, kept: Sequence[Tensor], like: Tensor) -> Tensor:
    """Entry s // K of i64[B, 1 + K (S - 1)] is the candidate that candidate s grew from, -1 for the root."""
    first = torch.arange(-1, branches, device=like.device).expand(len(like), -1)
    grown = [branches + branches * branches * step + node for step, node in enumerate(kept)]
    return torch.cat([first, *grown], dim=1)


def _depth(candidates: Tensor, branches: int) -> Tensor:
    """Levels below the root: the step that grew the candidate, plus one."""
    return torch.where(candidates < branches, 1, 2 + (candidates - branches) // (branches * branches))
