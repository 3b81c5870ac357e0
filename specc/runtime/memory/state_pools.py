"""What recurrent layers keep of requests, the engine's: checked when a step is bound, and where kernels find it.

A layer keeps a state in one tensor or several: T[rows, ...] with that of each state row, and beside it T[requests, N,
...] in which a verification leaves that of each node, row i of the batch in row i. Windows of a convolution may overlap
there, as SGLang has those of chains: what a node adds lies behind what the node before has.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import BindError
from ..plan.plan import Plan
from ..plan.recurrent.state_tables import OWNER, PART_WORDS, STATE_PARTS, STATE_POINTERS, STATES
from .arena import Arena
from .kv_rows import KvRows, Pairs
from .tables import TableGuard, check_names, plain_fault

Pair = tuple[Tensor, Tensor]
"""One tensor of a layer's state: T[rows, ...] of what is kept, and T[requests, N, ...] of what is pending."""
WIDE, NARROW = 16, 2
"""Bytes that divide all places of a state which is copied as one piece, and of any other."""


class StatePools(KvRows):
    """The states that the launches of one plan copy, and whatever else of the engine's they touch.

    Args:
        plan: the program, which commits states.
        device: where it is bound.
        given: pairs of tensors by owner, layer by layer, those of a layer in one order.
        beside: the KV buffers.

    """

    def __init__(self, plan: Plan, device: torch.device, given: Pairs, beside: KvRows) -> None:
        """Check the tensors. BindError says what is wrong."""
        check_names("state_pools", given, (OWNER,), "the program commits the states of")
        self._layers = plan.buffers[STATE_POINTERS].shape[0] // STATE_PARTS
        self._pairs, self._beside = _checked(plan, device, given.get(OWNER), self._layers), beside
        self.buffers = {**beside.buffers, STATES: [tensor for pair in self._pairs for tensor in pair]}
        self._guard = TableGuard(self._each())

    @property
    def named(self) -> dict[str, Tensor]:
        """Every tensor by its name for people; of what is pending the bytes from its first to its last."""
        pending = {name: _extent(tensor) for name, tensor in self._each().items() if name.endswith("[1]")}
        return self._beside.named | self._each() | pending

    def write_pointers(self, arena: Arena) -> None:
        """Fill the tables of addresses, and that of states; of tensors that a layer has not, with zeros."""
        self._beside.write_pointers(arena)
        table, parts = arena.buffer(STATE_POINTERS), len(self._pairs) // self._layers
        places = torch.zeros(self._layers, STATE_PARTS, PART_WORDS, dtype=torch.int64)
        places[:, :parts] = torch.tensor([_place(*pair) for pair in self._pairs]).view(-1, parts, PART_WORDS)
        table.copy_(places.view(table.shape))

    def check_place(self) -> None:
        """BindError when something has moved since: the tables hold addresses."""
        self._beside.check_place()
        self._guard.check()

    def _each(self) -> dict[str, Tensor]:
        pairs = enumerate(self._pairs)
        return {f"state_pools[{OWNER!r}][{i}][{j}]": tensor for i, pair in pairs for j, tensor in enumerate(pair)}


def _checked(plan: Plan, device: torch.device, pairs: Sequence[Pair] | None, layers: int) -> tuple[Pair, ...]:
    wanted = f"pairs of tensors, as many of each of {layers} layers, {STATE_PARTS} at most"
    if not isinstance(pairs, Sequence):
        given = "nothing" if pairs is None else f"a {type(pairs).__name__}"
        raise BindError(f"state_pools[{OWNER!r}] is {given}, the program wants {wanted}")
    if not pairs or len(pairs) % layers or len(pairs) > layers * STATE_PARTS:
        raise BindError(f"state_pools[{OWNER!r}] has {len(pairs)}, the program wants {wanted}")
    for index, pair in enumerate(pairs):
        if wrong := _fault(plan, device, pair, pairs[0]):
            raise BindError(f"state_pools[{OWNER!r}][{index}] {wrong}")
    return tuple(pairs)


def _fault(plan: Plan, device: torch.device, pair: Pair, first: Pair) -> str:
    """What is wrong with one tensor of a state, or nothing."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return "is no pair of what is kept and what is pending"
    for tensor in pair:
        if fault := plain_fault(tensor):
            return fault
        if tensor.device != device:
            return f"is on {tensor.device}, the program on {device}"
    kept, pending = pair
    room = [plan.buckets[-1], plan.size("N")]
    if kept.dim() < 2 or not kept.numel() or pending.shape[2:] != kept.shape[1:] or kept.dtype != pending.dtype:
        shapes = f"{kept.dtype}{list(kept.shape)} and {pending.dtype}{list(pending.shape)}"
        return f"has {shapes}, expected [rows, ...] and [requests, N, ...] of one dtype"
    if pending.shape[0] < room[0] or pending.shape[1] < room[1]:
        return f"has room for {list(pending.shape[:2])} requests and nodes, the program has {room}"
    if len(kept) != len(first[0]):
        return f"has {len(kept)} state rows, the first one {len(first[0])}"
    if not kept[0].is_contiguous() or (len(kept) > 1 and kept.stride(0) < kept[0].numel()):
        return f"has strides {list(kept.stride())}, expected states to be contiguous and apart"
    if (pieces := _pieces(pending)) is None:
        return f"has strides {list(pending.stride())}, expected pieces of a state to be equally far apart"
    if any(place % NARROW for place in (*_places(kept, pending), *pieces)):
        return f"has an address or a distance that {NARROW} does not divide"
    return ""


def _pieces(pending: Tensor) -> tuple[int, int] | None:
    """Bytes of what lies together of a node's state, and from one of these to the next; None if they are not alike."""
    runs: list[tuple[int, int]] = []  # sizes and strides of axes, the innermost first, those joined that can be
    for size, step in zip(reversed(pending.shape[2:]), reversed(pending.stride()[2:]), strict=True):
        if runs and step == runs[-1][0] * runs[-1][1]:
            runs[-1] = runs[-1][0] * size, runs[-1][1]
        elif size > 1:
            runs.append((size, step))
    together = runs.pop(0)[0] if runs and runs[0][1] == 1 else 1
    if len(runs) > 1:
        return None
    element = pending.element_size()
    return together * element, (runs[0][1] if runs else together) * element


def _places(kept: Tensor, pending: Tensor) -> tuple[int, ...]:
    """Both addresses, the distances of state rows, of requests and of nodes, and the size of a state, in bytes."""
    size = kept.element_size()
    steps = (step * size for step in (kept.stride(0), *pending.stride()[:2]))
    return kept.data_ptr(), pending.data_ptr(), *steps, kept[0].numel() * size


def _place(kept: Tensor, pending: Tensor) -> list[int]:
    """A row of the table, see `copy_state`."""
    places, (piece, apart) = _places(kept, pending), _pieces(pending) or (0, 0)
    whole = piece == places[-1] and not any(place % WIDE for place in places)
    return [*places, 0 if whole else piece, apart]


def _extent(tensor: Tensor) -> Tensor:
    """The bytes from the first element of a tensor to its last one."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    size, first = tensor.element_size(), tensor.storage_offset()
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return memory[first * size : (first + last + 1) * size]
