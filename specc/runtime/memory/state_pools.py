"""What recurrent layers keep of requests, the engine's: checked when a step is bound, and where kernels find it.

A layer keeps a state in one tensor or several. Each is bound as a *part*: T[rows, ...] with what is kept of each state
row, and behind it one tensor or several [requests, N, ...], in which a verification leaves something of each node, row
i of the batch in row i.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import BindError
from ..plan.plan import Plan
from ..plan.recurrent.state_tables import OWNER, STATE_POINTERS, STATES, TABLE_SIZES, CommittedStates
from .arena import Arena
from .kv_rows import KvRows, Parts
from .tables import TableGuard, check_names, plain_fault

Part = tuple[Tensor, ...]
"""One tensor of a layer's state: T[rows, ...] of what is kept, and [requests, N, ...] of what is pending."""


class StatePools(KvRows, ABC):
    """The states that the launches of one plan commit, and whatever else of the engine's they touch.

    Args:
        plan: the program, which commits states.
        pool: what it says of them.
        device: where it is bound.
        given: parts by owner, layer by layer, those of a layer in one order.
        beside: the KV buffers.

    """

    def __init__(self, plan: Plan, pool: CommittedStates, device: torch.device, given: Parts, beside: KvRows) -> None:
        """Check the tensors. BindError says what is wrong."""
        check_names("state_pools", given, (OWNER,), "the program commits the states of")
        self._plan, self._pool, self._device, self._beside = plan, pool, device, beside
        self._parts = self._checked(given.get(OWNER))
        self.buffers = {**beside.buffers, STATES: [tensor for part in self._parts for tensor in part]}
        self._guard = TableGuard(self._each())

    @property
    @abstractmethod
    def _wanted(self) -> str:
        """The tensors that the program wants, in words."""

    @abstractmethod
    def _counts(self, count: int) -> bool:
        """Whether so many parts may be those of all layers."""

    @abstractmethod
    def _fault(self, number: int, part: Part, first: Part) -> str:
        """Say what is wrong with a part whose tensors are on the device, and of the right number; "" if nothing is.

        number: of the part, among those of all layers; first: the part that comes first of all.
        """

    @abstractmethod
    def _members(self, number: int) -> tuple[str, ...]:
        """The names of a part's tensors."""

    @abstractmethod
    def _row(self, number: int, part: Part) -> list[int]:
        """The numbers that say where a part is, as its kernel reads them."""

    @property
    def named(self) -> dict[str, Tensor]:
        """Every tensor by its name for people; of what is pending the bytes from its first to its last."""
        pending = {name: _extent(tensor) for name, tensor in self._each().items() if not name.endswith("[0]")}
        return self._beside.named | self._each() | pending

    def write_pointers(self, arena: Arena) -> None:
        """Fill the tables of addresses, and that of states; of tensors that a layer has not, with zeros."""
        self._beside.write_pointers(arena)
        table, most, words = arena.buffer(STATE_POINTERS), *TABLE_SIZES[self._pool.op]
        places = torch.zeros(self._pool.layers, most, words, dtype=torch.int64)
        each = len(self._parts) // self._pool.layers
        for number, part in enumerate(self._parts):
            row = torch.tensor(self._row(number, part))
            places[number // each, number % each, : len(row)] = row
        table.copy_(places.view(table.shape))

    def check_place(self) -> None:
        """BindError when something has moved since: the tables hold addresses."""
        self._beside.check_place()
        self._guard.check()

    def _each(self) -> dict[str, Tensor]:
        parts = enumerate(self._parts)
        return {f"state_pools[{OWNER!r}][{i}][{j}]": tensor for i, part in parts for j, tensor in enumerate(part)}

    def _checked(self, parts: Sequence[Part] | None) -> tuple[Part, ...]:
        wanted = f"the program wants {self._wanted}"
        if not isinstance(parts, Sequence):
            given = "nothing" if parts is None else f"a {type(parts).__name__}"
            raise BindError(f"state_pools[{OWNER!r}] is {given}, {wanted}")
        if not parts or len(parts) % self._pool.layers or not self._counts(len(parts)):
            raise BindError(f"state_pools[{OWNER!r}] has {len(parts)}, {wanted}")
        for index, part in enumerate(parts):
            if wrong := self._plain_fault(index, part) or self._fault(index, part, parts[0]):
                raise BindError(f"state_pools[{OWNER!r}][{index}] {wrong}")
        return tuple(tuple(part) for part in parts)

    def _plain_fault(self, number: int, part: Part) -> str:
        """Say what is wrong with any kind of part; "" if nothing is."""
        members = self._members(number)
        if not isinstance(part, tuple | list) or len(part) != len(members):
            return f"is not {len(members)} tensors: {', '.join(members)}"
        for tensor in part:
            if fault := plain_fault(tensor):
                return fault
            if tensor.device != self._device:
                return f"is on {tensor.device}, the program on {self._device}"
        return ""

    def _room_fault(self, pending: Tensor) -> str:
        """Say what is wrong with the first two axes of what is pending; "" if nothing is."""
        room = [self._plan.buckets[-1], self._pool.nodes]
        if pending.shape[0] < room[0] or pending.shape[1] < room[1]:
            return f"has room for {list(pending.shape[:2])} requests and nodes, the program has {room}"
        return ""


def rows_fault(kept: Tensor, first: Tensor) -> str:
    """Say what is wrong with the rows of what is kept; "" if nothing is."""
    if len(kept) != len(first):
        return f"has {len(kept)} state rows, the first one {len(first)}"
    if not kept[0].is_contiguous() or (len(kept) > 1 and kept.stride(0) < kept[0].numel()):
        return f"has strides {list(kept.stride())}, expected states to be contiguous and apart"
    return ""


def _extent(tensor: Tensor) -> Tensor:
    """The bytes from the first element of a tensor to its last one."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    size, first = tensor.element_size(), tensor.storage_offset()
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return memory[first * size : (first + last + 1) * size]
