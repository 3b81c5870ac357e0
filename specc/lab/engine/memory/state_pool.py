"""What recurrent layers keep of requests: a row of every tensor for each pool row, and one more for each node.

A layer that keeps a recurrent state (linear attention, state spaces, short convolutions) mixes every token into it, so
nothing of a token that was rejected can be taken out again. A verification therefore leaves the state of a request as
it was. What each node makes of its parent's stands beside, *pending*, until one of them is committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

CONV, RECURRENT = "conv", "recurrent"


@dataclass(frozen=True, order=True)
class StatePart:
    """One tensor of a layer's state: which layer, which of its states, and whether it is that of its convolution."""

    layer: int
    number: int
    kind: str


@dataclass(frozen=True)
class PartShape:
    """A tensor of a layer's state, of one request."""

    part: StatePart
    size: tuple[int, ...]
    dtype: torch.dtype


class RowStates:
    """The states of the rows of one forward, which its layers read and write as they do in a cache of transformers."""

    def __init__(self, kept: Mapping[StatePart, Tensor] | None = None) -> None:
        """Go on from tensors T[b, ...], which are written over, or begin with none."""
        self._layers: defaultdict[tuple[int, int], LinearAttentionLayer] = defaultdict(LinearAttentionLayer)
        for part, tensor in (kept or {}).items():
            layer = self.layer(part.layer, part.number)
            layer.has_previous_state[0] = True
            if part.kind == CONV:
                layer.conv_states[0], layer.conv_kernel_size[0] = tensor, tensor.shape[-1]
                layer.is_conv_states_initialized[0] = True
            else:
                layer.recurrent_states[0], layer.is_recurrent_states_initialized[0] = tensor, True

    def layer(self, layer: int, number: int) -> LinearAttentionLayer:
        """Return one state of a layer, in transformers' own class."""
        return self._layers[layer, number]

    @property
    def goes_on(self) -> bool:
        """Whether some layer has a state."""
        return any(layer.has_previous_state[0] for layer in self._layers.values())

    def tensors(self) -> dict[StatePart, Tensor]:
        """Return what there is of the rows, T[b, ...]: behind a forward, what it has left."""
        found: dict[StatePart, Tensor] = {}
        for (layer, number), state in self._layers.items():
            kinds = {CONV: state.conv_states[0], RECURRENT: state.recurrent_states[0]}
            found |= {StatePart(layer, number, kind): tensor for kind, tensor in kinds.items() if tensor is not None}
        return found


def state_pools(
    kept: Mapping[str, Sequence[PartShape]], rows: int, device: torch.device | str = "cpu"
) -> dict[str, StatePool]:
    """Return a pool for every owner of which there is something to keep."""
    return {owner: StatePool(shapes, rows, device) for owner, shapes in kept.items() if shapes}


class StatePool:
    """The states of all pool rows, zeros at first: `parts` holds T[P, ...] of each tensor. Row 0 is nobody's.

    `pending` has what the last verification left, T[requests, N, ...]: the state after every node.
    """

    def __init__(self, shapes: Sequence[PartShape], rows: int, device: torch.device | str = "cpu") -> None:
        """Allocate `rows` pool rows (P)."""
        self.parts = {
            shape.part: torch.zeros((rows, *shape.size), dtype=shape.dtype, device=device) for shape in shapes
        }
        self.pending: dict[StatePart, Tensor] = {}
        self._nodes = 0

    def make_room(self, requests: int, nodes: int) -> None:
        """Allocate what is pending, for so many requests and nodes at most. It stays where it is."""
        self.pending = {part: kept.new_zeros(requests, nodes, *kept.shape[1:]) for part, kept in self.parts.items()}

    @property
    def bound(self) -> Sequence[tuple[Tensor, ...]]:
        """Each tensor of what is kept, beside that of what is pending, by layers."""
        return [(self.parts[part], self.pending[part]) for part in sorted(self.parts)]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, by layers."""
        return [self.parts[part] for part in sorted(self.parts)]

    def of_row(self, row: int) -> list[Tensor]:
        """The state of a pool row, by layers."""
        return [tensor[row] for tensor in self.tensors]

    def first_of_row(self, row: int) -> list[Tensor]:
        """Where a state that comes from elsewhere goes, by layers."""
        return self.of_row(row)

    def clear(self, row: int) -> None:
        """Leave nothing in a pool row."""
        for states in self.parts.values():
            states[row].zero_()

    def keep(self, rows: Tensor, left: RowStates) -> None:
        """Store what a forward has left of pool rows i64[b]."""
        tensors = left.tensors()
        for part, states in self.parts.items():
            states.index_put_((rows,), tensors[part])

    def _fit(self, count: int, nodes: int) -> None:
        """Make room for what is pending of so many requests and nodes, where there is not enough."""
        self._nodes = nodes
        if any(len(left) < count or left.shape[1] < nodes for left in self.pending.values()) or not self.pending:
            self.make_room(count, nodes)

    def runs(
        self, rows: Tensor, parents: Tensor, order: Tensor, points: Tensor | None = None
    ) -> Iterator[tuple[Tensor, RowStates]]:
        """Yield the node of every row that is to be run, i64[b], and the states that its parent left.

        rows i64[b] are pool rows; parents i64[b, N] of nodes, -1 for what was committed; order i64[b, N]: the nodes,
        parents first; points are of `SnapshotStates`. What a forward makes of the states is pending when the next one
        is asked for.
        """
        self._fit(*parents.shape)
        row = torch.arange(len(rows), device=rows.device)
        begun = {part: states[rows] for part, states in self.parts.items()}
        for node in order.unbind(1):
            parent = parents[row, node]
            left = RowStates(
                {
                    part: torch.where(over(parent >= 0, begun[part]), states[row, parent.clamp(min=0)], begun[part])
                    for part, states in self.pending.items()
                }
            )
            yield node, left
            for part, tensor in left.tensors().items():
                self.pending[part][row, node] = tensor

    def commit(self, rows: Tensor, accept_index: Tensor, accept_lens: Tensor) -> None:
        """Make the pending state of every row's last accepted node its state; of a row that accepts none, nothing.

        rows i64[b]; accept_index i32[b, A]: the accepted nodes, as numbers b * N + column; accept_lens i32[b].
        """
        live = accept_lens.nonzero()[:, 0]
        last = accept_index[live, accept_lens[live] - 1].long()
        for part, states in self.parts.items():
            states[rows[live]] = self.pending[part][last // self._nodes, last % self._nodes]


def over(flags: Tensor, states: Tensor) -> Tensor:
    """Flags i1[b] as they broadcast over states T[b, ...]."""
    return flags.view(-1, *[1] * (states.dim() - 1))
