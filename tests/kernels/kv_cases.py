"""Random KV pools for the kernels that copy rows, down to the byte."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from specc.compiler.ir.core import Module, Value
from specc.compiler.ir.declarations import KvPool
from specc.compiler.ir.types import StateType
from specc.compiler.kernels.writing.family import alignment

# Dtype and elements of a row: every unit from one byte to eight, rows that 16 bytes divide and rows that they do not.
ROWS = (
    (torch.uint8, (3,)),
    (torch.float8_e4m3fn, (2, 12)),
    (torch.float8_e5m2, (1, 32)),
    (torch.bfloat16, (1, 5)),
    (torch.float16, (2, 3)),
    (torch.bfloat16, (2, 20)),
    (torch.bfloat16, (4, 16)),
    (torch.float32, (1, 3)),
    (torch.float32, (2, 8)),
)


@dataclass
class Pool:
    """KV buffers of one model in random memory, of which the rows of slots are only a part.

    Attributes:
        memory: u8[buffers, bytes], all of it; the rest must stay as it is.
        slots: how many there are.
        dtype: of an element.
        row: elements of a slot's row, a shape.
        start: bytes before the first row.
        stride: bytes from slot to slot.

    """

    memory: torch.Tensor
    slots: int
    dtype: torch.dtype
    row: tuple[int, ...]
    start: int
    stride: int

    @property
    def row_bytes(self) -> int:
        """Bytes of the row of a slot."""
        return math.prod(self.row) * self.dtype.itemsize

    def copy(self, device: str = "cpu") -> Pool:
        """The same in other memory."""
        return Pool(self.memory.clone().to(device), self.slots, self.dtype, self.row, self.start, self.stride)

    def tensors(self) -> list[torch.Tensor]:
        """T[slots, *row] per buffer, as an engine has them: views of the memory."""
        strides = [math.prod(self.row[axis + 1 :]) for axis in range(len(self.row))]
        size, step = (self.slots, *self.row), self.stride // self.dtype.itemsize
        whole = [buffer[self.start :] for buffer in self.memory]
        whole = [buffer[: len(buffer) // self.dtype.itemsize * self.dtype.itemsize] for buffer in whole]
        return [buffer.view(self.dtype).as_strided(size, (step, *strides), _offset(buffer, self)) for buffer in whole]

    def pointers(self) -> torch.Tensor:
        """i64[buffers]: where slot 0 of every buffer is."""
        addresses = [buffer.data_ptr() + self.start for buffer in self.memory]
        return torch.tensor(addresses, dtype=torch.int64, device=self.memory.device)

    def copy_rows(self, pairs: list[tuple[int, int]]) -> None:
        """Slot to slot in every buffer, all sources first; pair by pair."""
        before = self.memory.clone()
        for source, target in pairs:
            first, second = (self.start + slot * self.stride for slot in (source, target))
            self.memory[:, second : second + self.row_bytes] = before[:, first : first + self.row_bytes]


def _offset(buffer: torch.Tensor, pool: Pool) -> int:
    return buffer.storage_offset() // pool.dtype.itemsize


def random_pool(
    source: torch.Generator, buffers: int, slots: int, dtype: torch.dtype, row: tuple[int, ...], gap: int
) -> Pool:
    """Rows ``gap`` times their alignment apart, no better aligned than they have to be."""
    align = alignment(math.prod(row) * dtype.itemsize)
    stride = math.prod(row) * dtype.itemsize + gap * align
    whole = -(-(align + slots * stride + 7) // 16) * 16
    memory = torch.randint(0, 256, (buffers, whole), generator=source, dtype=torch.uint8)
    return Pool(memory, slots, dtype, row, align, stride)


def units(size: int) -> list[int]:
    """Every unit that rows of this many bytes allow, 8 bytes at most."""
    return [unit for unit in (1, 2, 4, 8) if size % unit == 0]


def kv_state(module: Module, owner: str, pool: Pool, layers: int) -> Value:
    """Declare the buffers of a model; what ops on them take."""
    buffers = len(pool.memory) // layers
    module.decls.append(KvPool(owner, layers, buffers, pool.row_bytes, "uint8"))
    return module.add_input(f"{owner}_kv", StateType(owner))
