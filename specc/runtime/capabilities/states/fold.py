"""States that a program advances: beside T[rows, ...] stands what each node adds to it, [requests, N, ...] each.

The plan says of both what they are, see `CommittedStates`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ...bound import BoundStep
from ...memory.kv_rows import KvRows, Parts
from ...memory.state_pools import Part, StatePools, rows_fault
from ...plan.recurrent import state_tables
from ...plan.recurrent.state_tables import FOLD, CommittedStates
from ...semantics.convention import DTYPES

ALIGNMENT = 16
"""Bytes that divide the addresses of what is kept, and its distances, as far as its rows' length allows."""


class FoldedStates(StatePools):
    """A matrix for each head, and the window of a convolution, in each layer."""

    @property
    def _wanted(self) -> str:
        each = "; ".join(f"({', '.join(self._members(number))})" for number in range(len(self._pool.parts)))
        return f"{len(self._pool.parts)} parts of each of {self._pool.layers} layers: {each}"

    def _counts(self, count: int) -> bool:
        return count == self._pool.layers * len(self._pool.parts)

    def _members(self, number: int) -> tuple[str, ...]:
        part = self._part(number)
        kept = f"{part.name} {part.dtype}[rows, {', '.join(map(str, part.shape))}]"
        return kept, *(f"{r.name} {r.dtype}[requests, N, {', '.join(map(str, r.shape))}]" for r in part.records)

    def _fault(self, number: int, part: Part, first: Part) -> str:
        kept, *records = part
        wanted = self._part(number)
        if not _fits(kept, wanted.dtype, 1, wanted.shape, longer=wanted.name == "window") or not len(kept):
            return self._shape_fault(number, 0, kept)
        for place, (record, known) in enumerate(zip(records, wanted.records, strict=True), 1):
            if not _fits(record, known.dtype, 2, known.shape, longer=False):
                return self._shape_fault(number, place, record)
            if fault := self._room_fault(record):
                return f"{known.name} {fault}"
            if not record[0, 0].is_contiguous():
                return f"{known.name} has strides {list(record.stride())}, expected those of a node to be contiguous"
        if fault := rows_fault(kept, first[0]):
            return fault
        size, row = kept.element_size(), kept.shape[-1] * kept.element_size()
        aligned = min(ALIGNMENT, row & -row)
        if kept.data_ptr() % aligned or (len(kept) > 1 and kept.stride(0) * size % aligned):
            return f"has an address or a distance that {aligned} does not divide"
        return ""

    def _shape_fault(self, number: int, place: int, tensor: Tensor) -> str:
        return f"has {tensor.dtype}{list(tensor.shape)}, expected {self._members(number)[place]}"

    def _row(self, number: int, part: Part) -> list[int]:
        """See `fold_matrix` and `shift_window`: addresses, and distances in elements; of a window its length."""
        kept, *records = part
        steps = [word for record in records for word in (record.data_ptr(), *record.stride()[:2])]
        return [kept.data_ptr(), kept.stride(0), *steps, kept.shape[-1]]

    def _part(self, number: int) -> state_tables.StateTensor:
        return self._pool.parts[number % len(self._pool.parts)]


def _fits(tensor: Tensor, dtype: str, before: int, shape: tuple[int, ...], *, longer: bool) -> bool:
    """Whether a tensor has a dtype and, behind so many axes, a shape; `longer`: the last axis at least."""
    own = tuple(tensor.shape[before:])
    if tensor.dtype != DTYPES[dtype] or tensor.dim() != before + len(shape):
        return False
    return own[:-1] == shape[:-1] and (own[-1] == shape[-1] or (longer and own[-1] > shape[-1]))


class FoldingStep(BoundStep):
    """A step that advances states by the records of accepted nodes."""

    def _moved(self, kv_pools: Mapping[str, Sequence[Tensor]], state_pools: Parts) -> KvRows:
        """The KV buffers, and the states beside them. BindError unless they fit."""
        pool = CommittedStates.of(self._plan)
        if pool is None or pool.op != FOLD:
            return super()._moved(kv_pools, state_pools)
        return FoldedStates(self._plan, pool, self._device, state_pools, super()._moved(kv_pools, {}))
