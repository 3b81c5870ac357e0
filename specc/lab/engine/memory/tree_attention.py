"""What the tokens of a draft tree attend to: nodes in the target's verify window, branches in the draft's pages.

Nothing here reads a tensor back to the host, and shapes depend on constants only, so forwards can be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specc.lab.engine.memory.context import PagedContext
from specc.lab.engine.memory.kv_pool import KVPool
from specc.lab.engine.memory.probing import AttentionCache
from specc.lab.engine.memory.state_pool import RowStates, StatePool
from specc.runtime.entry.callbacks import DraftCall
from specc.runtime.semantics.moves import branch_run


@dataclass(frozen=True)
class Branches:
    """Where the K branches of a request draft, page-aligned and each on its own.

    offset: the first drafted position is seq_len + offset. page: tokens per page. room: positions per branch.
    """

    offset: int
    page: int
    room: int

    def places(self, seq_lens: Tensor, count: int, width: int) -> Tensor:
        """Columns of the request table that hold positions 0..width-1 of every branch: i64[b, count, width].

        With base = seq_len + offset and tail = base % page, positions before base - tail are shared. Branch k has
        a run of its own from there on, ceil((tail + room) / page) pages long, at base - tail + k * run.
        """
        positions = torch.arange(width, device=seq_lens.device)
        branch = torch.arange(count, device=seq_lens.device)[None, :, None]
        base = (seq_lens + self.offset)[:, None, None]
        tail = base % self.page
        run = branch_run(base, self.page, self.room)
        return positions + torch.where(positions >= base - tail, branch * run, 0)


class BranchContext(PagedContext):
    """One token of every branch: tokens, positions and slots i64[b, K] as b * K rows of one token each.

    A branch that was re-parented reads what it wrote itself at earlier positions, not what its new parent did.
    """

    def __init__(self, pool: KVPool, req_to_token: Tensor, call: DraftCall, width: int, branches: Branches) -> None:
        """Describe a draft forward."""
        rows, positions = call["rows"], call["positions"]
        count = positions.shape[1]
        every = rows.repeat_interleave(count)
        super().__init__(pool, req_to_token, every, positions.reshape(-1, 1), call["slots"], width)
        places = branches.places(call["seq_lens"], count, width).clamp(max=req_to_token.shape[1] - 1)
        self.read_slots = req_to_token[rows[:, None, None], places].long().flatten(0, 1)


class TreeContext(PagedContext):
    """The nodes of every request's tree, in the N slots from seq_len on; a node's position is seq_len + depth.

    A node attends to the committed prefix and, in the window, to the columns that its row of `tree` has. With a
    sliding window, what counts is how deep a node is, not in which slot it lies.
    """

    def __init__(
        self, pool: KVPool, req_to_token: Tensor, rows: Tensor, positions: Tensor, slots: Tensor, width: int,
        begin: Tensor, prefix_and_tree: Tensor,
    ) -> None:  # fmt: skip
        """Describe a verify forward of windows from positions i64[b] on; prefix_and_tree is of `visible_keys`."""
        super().__init__(pool, req_to_token, rows, positions, slots, width)
        base = begin[:, None]
        column = (self.key_positions - base).clamp(0, positions.shape[1] - 1)
        in_window = self.key_positions >= base
        self.key_positions = torch.where(in_window, positions.gather(1, column), self.key_positions)
        self._visible = prefix_and_tree

    def visible(self) -> Tensor:
        """Which keys each node attends to, bool[b, N, width]."""
        return self._visible


class RowsContext(PagedContext):
    """Some nodes of trees, each as a request of one token, out of the context of all nodes of all requests."""

    def __init__(self, tree: PagedContext, slots: Tensor, owners: Tensor, columns: Tensor) -> None:
        """Describe the forward of nodes i64[r] of requests i64[r], which are written to slots i64[r]."""
        AttentionCache.__init__(self)
        self.pool, self.width, self.read_slots = tree.pool, tree.width, tree.read_slots[owners]
        self.key_positions, self.positions = tree.key_positions[owners], tree.positions[owners, columns][:, None]
        self.write_slots, self.reached, self._masks = slots.clamp(min=0), [], {}
        self._visible = tree.visible()[owners, columns][:, None]

    def visible(self) -> Tensor:
        """Which keys each node attends to, bool[r, 1, width]."""
        return self._visible


class NodeContext(PagedContext):
    """One node of every request's window, which goes on from the recurrent states that its parent left."""

    def __init__(self, window: PagedContext, node: Tensor, states: RowStates) -> None:
        """Describe the forward of nodes i64[b] out of that of all."""
        AttentionCache.__init__(self, states)
        row = torch.arange(len(node), device=node.device)
        self.pool, self.width, self.read_slots = window.pool, window.width, window.read_slots
        self.key_positions, self.positions = window.key_positions, window.positions[row, node][:, None]
        self.write_slots = window.write_slots.view(window.positions.shape)[row, node]
        self.reached, self._masks = [], {}
        self._visible = window.visible()[row, node][:, None]

    def visible(self) -> Tensor:
        """Which keys each node attends to, bool[b, 1, width]."""
        return self._visible


def node_by_node(
    run: Callable[[Tensor, PagedContext], Sequence[Tensor]],
    window: PagedContext,
    tokens: Tensor,
    pool: StatePool,
    rows: Tensor,
    begin: Tensor,
    points: Tensor | None = None,
) -> list[Tensor]:
    """Run nodes i64[b, N] of the windows of pool rows i64[b], each from the recurrent states that its parent left.

    begin: the position i64[b] of every window's first slot. A node's parent is the one that it sees one position before
    its own. points: see `SnapshotStates`. Returns of all nodes, T[b, N, ...], what `run` gives for tokens i64[b, 1] and
    their memory.
    """
    positions = window.positions
    count = positions.shape[1]
    columns = begin[:, None, None] + torch.arange(count, device=begin.device)
    seen = window.visible().gather(2, columns.clamp(max=window.width - 1).expand(-1, count, -1))
    above = seen & (positions[:, None] == positions[..., None] - 1)
    parents = torch.where(above.any(2), above.int().argmax(2), -1)
    order = positions.argsort(dim=1, stable=True)
    found = [
        run(tokens.gather(1, node[:, None]), NodeContext(window, node, states))
        for node, states in pool.runs(rows, parents, order, points)
    ]
    places = order.argsort(1)[..., None]
    return [torch.cat(parts, 1).take_along_dim(places, 1) for parts in zip(*found, strict=True)]


def seen_columns(mask: Tensor, counts: Tensor, slots: Tensor) -> Tensor:
    """Which columns each node sees, bool[b, N, N] as a mask `qlen` has it, from a mask `slots`.

    mask i32[b, N, N] and counts i32[b, N] as `tree.seen_slots` writes them; slots i64[b, N] of the window, in which a
    request has no slot twice.
    """
    counted = torch.arange(mask.shape[2], device=mask.device) < counts[..., None]
    return ((mask[..., None, :] == slots[:, None, :, None]) & counted[..., None, :]).any(-1)


def visible_keys(mask: Tensor, mode: str, seq_lens: Tensor, nodes: int, width: int) -> Tensor:
    """Return which of `width` keys each node attends to, bool[b, N, width], from a tree mask of a mode but `slots`.

    mask: i1[b, N, N] (`qlen`), u8[b, N, w] (`bitpacked`) or i1[b, n] (`full`), as `tree.mask` writes them.
    """
    keys = torch.arange(width, device=seq_lens.device)
    lengths = seq_lens[:, None, None]
    if mode == "full":
        row = lengths + nodes
        begin = (nodes * row.flatten()).cumsum(0)[:, None, None] - nodes * row
        node = torch.arange(nodes, device=seq_lens.device)[None, :, None]
        entry = (begin + node * row + keys).clamp(max=mask.numel() - 1)
        return mask.reshape(-1)[entry] & (keys < row)
    tree = _unpacked(mask, nodes) if mode == "bitpacked" else mask
    column = (keys - lengths).expand(-1, nodes, -1)
    own = tree.gather(2, column.clamp(0, nodes - 1)) & (column < nodes)
    return torch.where(column < 0, True, own)


def _unpacked(mask: Tensor, nodes: int) -> Tensor:
    """Bit j of every node's little-endian word u8[b, N, w] as column j of bool[b, N, N]."""
    bits = mask[..., None] >> torch.arange(8, dtype=torch.uint8, device=mask.device)
    return (bits & 1).flatten(2)[..., :nodes].bool()
