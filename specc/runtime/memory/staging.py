"""Inputs on their way to the buffers that the program reads: from the host in one copy, or from the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..plan.plan import Buffer, Plan
from ..semantics.convention import DTYPES
from .arena import Arena

Sent = dict["Staging", Mapping[str, Sequence[int]]]
DEPTH = 4
"""Host buffers in turn: how many steps the host can run ahead of the device without waiting."""


@dataclass
class _Slot:
    """One host copy of the inputs, `raw` by region; free again when `done` has passed."""

    raw: list[Tensor]
    fields: dict[str, Tensor]
    done: torch.cuda.Event | None


class Staging:
    """Writes the inputs `names` of a plan, padded with zeros to the largest bucket.

    When the input buffers lie next to each other in the arena, with nothing else between them, a step sends them in one
    copy; otherwise in one copy each. Lists that lie there already are not sent again.
    """

    def __init__(self, plan: Plan, arena: Arena, names: Sequence[str], sent: Sent | None = None) -> None:
        """Host memory for the inputs, pinned when the arena is on a GPU; `sent`: who wrote to it last, and what."""
        self._arena, self._sent = arena, {} if sent is None else sent
        homes = {name: plan.home(name) for name in names}
        buffers = {name: home for name, home in homes.items() if home is not None}
        self._regions = _regions(list(buffers.values()), list(arena.buffers.values()))
        cuda = arena.bytes.is_cuda
        self._slots = [self._slot(buffers, cuda) for _ in range(DEPTH if cuda else 1)]
        self._turn = 0
        self._homes = {name: arena.buffer(buffer.name) for name, buffer in buffers.items()}
        self._padding = torch.zeros(plan.buckets[-1], dtype=torch.int64, device=arena.bytes.device)

    def _slot(self, buffers: Mapping[str, Buffer], cuda: bool) -> _Slot:
        raw = [torch.zeros(end - start, dtype=torch.uint8, pin_memory=cuda) for start, end in self._regions]
        fields: dict[str, Tensor] = {}
        for name, buffer in buffers.items():
            low, high = _range(buffer)
            for (start, end), memory in zip(self._regions, raw, strict=True):
                if start <= low and high <= end:
                    piece = memory[low - start : high - start].view(DTYPES[buffer.dtype])
                    fields[name] = piece.as_strided(buffer.shape, buffer.strides)
        return _Slot(raw, fields, torch.cuda.Event() if cuda else None)

    def send(self, columns: Mapping[str, Sequence[int] | Tensor], rows: int) -> None:
        """Queue the copy of one column per input to `rows` rows; those past the end of a column are zero.

        A list of integers comes from the host, a tensor i64[b] from the device: nobody waits for it.
        """
        given = {name: columns[name] for name in self._homes}
        tensors = {name: self._outside(column) for name, column in given.items() if isinstance(column, Tensor)}
        lists = {name: column for name, column in given.items() if not isinstance(column, Tensor)}
        if tensors or self._sent.get(self) != lists:
            self._sent.clear()
            if lists:
                self._send_lists(lists)
            if not tensors:
                self._sent[self] = {name: [*column] for name, column in lists.items()}
        for name, column in tensors.items():
            torch.cat((column, self._padding[: rows - len(column)]), out=self._homes[name][:rows])

    def _outside(self, column: Tensor) -> Tensor:
        """The column, or a copy of one in the arena: a result of another shape may lie where the inputs do."""
        inside = column.untyped_storage().data_ptr() == self._arena.bytes.untyped_storage().data_ptr()
        return column.clone() if inside else column

    def _send_lists(self, columns: Mapping[str, Sequence[int]]) -> None:
        """The inputs that are lists, in host memory that the copy reads later; the others become zero."""
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % len(self._slots)
        if slot.done is not None:
            slot.done.synchronize()
        for name, field in slot.fields.items():
            field.zero_()
            column = columns.get(name, ())
            field[: len(column)] = torch.tensor(column, dtype=field.dtype)
        for (start, end), memory in zip(self._regions, slot.raw, strict=True):
            self._arena.bytes[start:end].copy_(memory, non_blocking=True)
        if slot.done is not None:
            slot.done.record(torch.cuda.current_stream(self._arena.bytes.device))


def _range(buffer: Buffer) -> tuple[int, int]:
    start = buffer.offset or 0
    return start, start + buffer.bytes


def _regions(inputs: list[Buffer], everything: list[Buffer]) -> list[tuple[int, int]]:
    """Byte ranges to copy: one over all inputs when no other buffer lies between them, else one per input."""
    ranges = sorted(_range(buffer) for buffer in inputs)
    if not ranges:
        return []
    low, high = ranges[0][0], max(end for _, end in ranges)
    names = {buffer.name for buffer in inputs}
    others = [_range(buffer) for buffer in everything if buffer.name not in names]
    if any(start < high and end > low for start, end in others):
        return ranges
    return [(low, high)]
