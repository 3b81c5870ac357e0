"""The engine's KV buffers: checked when a step is bound, and their addresses written to where kernels look for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..errors import BindError
from ..plan.plan import KvPool, Plan, kv_pointers
from .arena import Arena
from .kv_rows import KvRows
from .tables import check_names, plain_fault

VECTOR_BYTES = 16
"""Bytes of the widest load. Rows, addresses and strides need no more than the row's own length divides by."""


class KvPools(KvRows):
    """The KV buffers that the kernels of one plan touch."""

    def __init__(self, plan: Plan, device: torch.device, given: Mapping[str, Sequence[Tensor]]) -> None:
        """Check the buffers of every owner that the plan binds; others are left alone. BindError says what is wrong."""
        check_names("kv_pools", given, plan.kv_pools, "the program knows the KV buffers of")
        pools = {owner: pool for owner, pool in plan.kv_pools.items() if pool.bound}
        self.buffers = {owner: _checked(owner, pool, device, given.get(owner)) for owner, pool in pools.items()}
        self._addresses = self._where()

    def write_pointers(self, arena: Arena) -> None:
        """Fill the pointer tables, i64[layers * buffers] per owner."""
        for owner, buffers in self.buffers.items():
            addresses = [buffer.data_ptr() for buffer in buffers]
            arena.buffer(kv_pointers(owner)).copy_(torch.tensor(addresses, dtype=torch.int64))

    def check_place(self) -> None:
        """BindError when a buffer has moved since: the tables hold addresses."""
        if self._where() != self._addresses:
            raise BindError("KV buffers have moved since bind; bind the step again")

    def _where(self) -> list[int]:
        return [buffer.data_ptr() for buffers in self.buffers.values() for buffer in buffers]


def _checked(owner: str, pool: KvPool, device: torch.device, given: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
    count = pool.layers * pool.buffers
    wanted = f"{count} tensors, {pool.layers} layers of {pool.buffers}"
    if given is None:
        raise BindError(f"kv_pools has no {owner!r}: the program moves KV rows of that model in {wanted}")
    if not isinstance(given, Sequence):
        raise BindError(f"kv_pools[{owner!r}] is a {type(given).__name__}, the program wants {wanted}")
    buffers = tuple(given)
    if len(buffers) != count:
        raise BindError(f"kv_pools[{owner!r}] has {len(buffers)} tensors, the program wants {wanted}")
    for index, buffer in enumerate(buffers):
        wrong = _row_fault(pool, device, buffer) or _fault_beside(buffers[0], buffer)
        if wrong:
            raise BindError(f"kv_pools[{owner!r}][{index}] {wrong}")
    return buffers


def _row_fault(pool: KvPool, device: torch.device, buffer: Tensor) -> str:
    """What is wrong with one buffer, or nothing."""
    if fault := plain_fault(buffer):
        return fault
    dtype = str(buffer.dtype).removeprefix("torch.")
    if dtype != pool.dtype and not (buffer.dtype == torch.uint8 and pool.dtype.startswith("float8")):
        return f"is {dtype}, the program moves {pool.dtype}"
    if buffer.device != device:
        return f"is on {buffer.device}, the program on {device}"
    if buffer.dim() < 2 or not len(buffer):
        return f"has shape {list(buffer.shape)}, expected [slots, ...]"
    row_bytes = math.prod(buffer.shape[1:]) * buffer.element_size()
    if row_bytes != pool.row_bytes:
        return f"has {row_bytes} bytes per slot, the program moves {pool.row_bytes}"
    if not buffer[0].is_contiguous():
        return f"has strides {list(buffer.stride())}, expected the row of a slot to be contiguous"
    stride = buffer.stride(0) * buffer.element_size()
    if len(buffer) > 1 and stride < row_bytes:
        return f"has {stride} bytes from slot to slot, less than the {row_bytes} of a row"
    alignment = min(VECTOR_BYTES, row_bytes & -row_bytes)
    if buffer.data_ptr() % alignment or stride % alignment:
        return f"is at {buffer.data_ptr():#x} with {stride} bytes from slot to slot, not multiples of {alignment}"
    return ""


def _fault_beside(first: Tensor, buffer: Tensor) -> str:
    """How a buffer differs from the first one, in what all must share."""
    if len(buffer) != len(first):
        return f"has {len(buffer)} slots, the first buffer {len(first)}"
    stride, first_stride = (tensor.stride(0) * tensor.element_size() for tensor in (buffer, first))
    if stride != first_stride:
        return f"has {stride} bytes from slot to slot, the first buffer {first_stride}"
    return ""
