"""One allocation for every buffer the program owns, laid out by the plan."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ..errors import PlanError
from ..plan.draft_head import PART_AXIS
from ..plan.plan import BATCH_AXIS, RANK_AXIS, Buffer, Plan
from ..semantics.convention import DTYPES

ALIGNMENT = 256
"""Bytes that divide the address of every arena buffer."""


class Arena:
    """The arena buffers of one plan on one device.

    Args:
        plan: gives offsets, shapes and strides.
        device: where to allocate.
        poison: byte to fill fresh memory with before buffers of `init` zero are cleared; None leaves it as it comes.
            Tests use it to show that nothing reads what nobody wrote.
        memory: u8[at least the arena's bytes] of `allocate` to use, which programs of other shapes use too.

    Raises PlanError when a buffer is misaligned, does not hold its shape, or overlaps one that keeps its content.

    """

    def __init__(
        self, plan: Plan, device: torch.device, poison: int | None = None, memory: Tensor | None = None
    ) -> None:
        """Allocate, if there is no memory yet, and initialise."""
        self.plan = plan
        self.buffers = {name: b for name, b in plan.buffers.items() if b.owner == "arena"}
        for buffer in self.buffers.values():
            _check(buffer)
        _check_kept(list(self.buffers.values()))
        self.bytes = allocate([plan], device, poison) if memory is None else memory
        self._whole = {name: self._tensor(buffer) for name, buffer in self.buffers.items()}
        self._views: dict[tuple[str, int], Tensor] = {}
        for name, buffer in self.buffers.items():
            if buffer.init == "zero":
                self._whole[name].zero_()

    def buffer(self, name: str) -> Tensor:
        """The whole buffer, at the largest bucket. PlanError when the arena has no such buffer."""
        if name not in self._whole:
            raise PlanError(f"the arena has no buffer {name!r}")
        return self._whole[name]

    def stand_for(self, name: str, tensor: Tensor) -> None:
        """Let memory of the engine's stand for a whole buffer that no view was asked of yet; it fits, see `carried`."""
        self._whole[name] = tensor

    def view(self, name: str, rows: int) -> Tensor:
        """The value or input `name` for a batch of `rows` rows: `[:rows]` of every batch axis, strides unchanged.

        Records of all ranks, or parts of a vocabulary, are dense instead: one collective, or one launch, writes them.

        The same tensor object on every call.
        """
        key = (name, rows)
        if key not in self._views:
            self._views[key] = self._view(name, rows)
        return self._views[key]

    def _view(self, name: str, rows: int) -> Tensor:
        home = self.plan.home(name)
        field = self.plan.values.get(name) or self.plan.inputs[name]
        whole = self.buffer(home.name if home else name)
        if whole.dtype != DTYPES[field.dtype] or whole.dim() != len(field.axes):
            raise PlanError(f"{name!r} is {field.dtype}{list(field.axes)}, its buffer {tuple(whole.shape)}")
        shape = [rows if axis == BATCH_AXIS else self.plan.size(axis) for axis in field.axes]
        if any(wanted > held for wanted, held in zip(shape, whole.shape, strict=True)):
            raise PlanError(f"{name!r} of shape {shape} does not fit its buffer of {tuple(whole.shape)}")
        if field.axes[:1] in ((PART_AXIS,), (RANK_AXIS,)):
            return whole.view(-1)[: math.prod(shape)].view(shape)
        return whole.as_strided(shape, whole.stride())

    def _tensor(self, buffer: Buffer) -> Tensor:
        assert buffer.offset is not None  # checked in __init__
        piece = self.bytes[buffer.offset : _end(buffer)]
        return piece.view(DTYPES[buffer.dtype]).as_strided(buffer.shape, buffer.strides)


def allocate(plans: Iterable[Plan], device: torch.device, poison: int | None = None) -> Tensor:
    """Memory u8[bytes] for the arena of any of the plans, filled with `poison` if that is given."""
    buffers = [buffer for plan in plans for buffer in plan.buffers.values() if buffer.owner == "arena"]
    size = max((_end(buffer) for buffer in buffers), default=0)
    raw = torch.empty(size + ALIGNMENT, dtype=torch.uint8, device=device)
    start = -raw.data_ptr() % ALIGNMENT
    memory = raw[start : start + size]
    return memory if poison is None else memory.fill_(poison)


def _end(buffer: Buffer) -> int:
    return (buffer.offset or 0) + buffer.bytes


def _check(buffer: Buffer) -> None:
    if buffer.offset is None or buffer.offset < 0 or buffer.offset % ALIGNMENT:
        raise PlanError(f"buffer {buffer.name!r} is at {buffer.offset}, not at a multiple of {ALIGNMENT}")
    itemsize = DTYPES[buffer.dtype].itemsize
    last = sum((size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True))
    needed = (last + 1) * itemsize if math.prod(buffer.shape) else 0
    if needed > buffer.bytes or buffer.bytes % itemsize:
        raise PlanError(f"buffer {buffer.name!r} has {buffer.bytes} bytes, its shape needs {needed}")


def _check_kept(buffers: list[Buffer]) -> None:
    """Pool rows and counters live across steps: nothing may share their memory."""
    ordered = sorted(buffers, key=lambda buffer: buffer.offset or 0)
    for i, first in enumerate(ordered):
        for second in ordered[i + 1 :]:
            overlap = first.bytes and second.bytes and _end(first) > (second.offset or 0)
            if overlap and "zero" in (first.init, second.init):
                raise PlanError(f"buffer {first.name!r} overlaps {second.name!r}, which must keep its content")
