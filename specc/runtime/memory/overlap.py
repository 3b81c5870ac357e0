"""Which tensors of the engine's share memory, to the byte. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from ..errors import BindError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StridedRows:
    """Where a tensor is: `count` rows of `size` contiguous bytes, the first at `start`, then one every `stride` bytes.

    `name` is that of the tensor, for people.
    """

    name: str
    start: int
    size: int
    stride: int
    count: int

    @staticmethod
    def of(name: str, tensor: Tensor) -> StridedRows:
        """The rows of a tensor [count, ...] whose rows are contiguous; of a contiguous one they are one."""
        start, size, whole = tensor.data_ptr(), tensor.element_size(), tensor.is_contiguous()
        if whole or not tensor.numel():
            return StridedRows(name, start, tensor.numel() * size, 1, 1)
        return StridedRows(name, start, tensor[0].numel() * size, tensor.stride(0) * size, len(tensor))

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return self.start + (self.count - 1) * self.stride + self.size

    def share(self, other: StridedRows) -> bool:
        """Whether some row of one has a byte of some row of the other."""
        if self.end <= other.start or other.end <= self.start or not self.size or not other.size:
            return False
        few, many = sorted((self, other), key=lambda rows: rows.count)
        if few.count > 1 and few.stride != many.stride:
            return any(many._has(few.start + row * few.stride, few.size, 1) for row in range(few.count))
        return many._has(few.start, few.size, few.count)

    def _has(self, start: int, size: int, count: int) -> bool:
        """Whether a row overlaps one of `count` pieces of `size` bytes from `start` on, which have the same stride."""
        ahead = start - self.start
        nearest = max((ahead - self.size) // self.stride + 1, 1 - count)
        return nearest < self.count and nearest * self.stride < ahead + size


def check_apart(written: Mapping[str, Tensor], read: Mapping[str, Tensor]) -> None:
    """BindError when a tensor that the program writes shares memory with another one, or with one that it reads.

    Tensors by name, for people; each as `Rows.of` takes it.
    """
    shared = sharing(*([StridedRows.of(name, tensor) for name, tensor in given.items()] for given in (written, read)))
    if shared:
        raise BindError(
            f"{shared[0]} and {shared[1]} share memory: what the program writes to one would change the other"
        )


def sharing(written: Iterable[StridedRows], read: Iterable[StridedRows]) -> tuple[str, str] | None:
    """The names of two that share memory, at least one of them written; None when no two do."""
    kept = list(written)
    pairs = [*combinations(kept, 2), *((region, other) for region in kept for other in read)]
    return next(((region.name, other.name) for region, other in pairs if region.share(other)), None)
