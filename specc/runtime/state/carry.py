"""The carry: what a request takes from step to step, as one typed record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from ..batch import LARGEST, integers
from ..errors import BatchError, CarryError
from ..plan.fields import own
from ..plan.plan import Plan
from ..semantics.convention import DTYPES


class Carry:
    """A record of n requests: every field of `own`, a tensor of n rows each.

    Every method acts on all fields or raises CarryError, and returns a new record that shares no memory with the old.
    """

    def __init__(self, fields: Mapping[str, Tensor]) -> None:
        """Take the tensors as they are. CarryError when their row counts differ or there is no field."""
        if not isinstance(fields, Mapping) or not all(isinstance(tensor, Tensor) for tensor in fields.values()):
            raise CarryError("a carry has a tensor for every field, by name")
        if not fields:
            raise CarryError("a carry without fields: all that the program carries the engine writes")
        counts = {name: tensor.shape[0] if tensor.dim() else -1 for name, tensor in fields.items()}
        if len(set(counts.values())) != 1 or -1 in counts.values():
            raise CarryError(f"fields must have the same number of rows, got {counts}")
        self._fields = dict(fields)
        self._rows = next(iter(counts.values()))

    @staticmethod
    def idle(plan: Plan, device: torch.device) -> Carry:
        """The record of no requests: 0 rows of every field, in its dtype and width. CarryError without a field."""
        fields: dict[str, Tensor] = {}
        for field in own(plan).values():
            shape = [0, *(plan.size(axis) for axis in field.axes[1:])]
            fields[field.name] = torch.empty(shape, dtype=DTYPES[field.dtype], device=device)
        return Carry(fields)

    @property
    def fields(self) -> Mapping[str, Tensor]:
        """Field name to tensor [n, ...], read only."""
        return MappingProxyType(self._fields)

    def __len__(self) -> int:
        """Number of requests."""
        return self._rows

    def filter(self, rows: Sequence[int]) -> Carry:
        """The requests `rows` (0-based, in that order, repeats allowed). CarryError when one is out of range."""
        indices = _integers(rows)
        for row in indices:
            if not 0 <= row < len(self):
                raise CarryError(f"row {row} of a carry of {len(self)} rows")
        return self._map(lambda t: t[torch.tensor(indices, dtype=torch.int64, device=t.device)])

    def merge(self, other: Carry) -> Carry:
        """These requests, then those of `other`. CarryError when fields, widths, dtypes or devices differ."""
        check_carry(other)
        other.check_like(self)
        return Carry({name: torch.cat([t, other._fields[name]]) for name, t in self._fields.items()})

    def pad(self, rows: int) -> Carry:
        """These requests and zero rows up to `rows`. CarryError when there are already more."""
        missing = _integers([rows])[0] - len(self)
        if not 0 <= missing <= LARGEST:
            raise CarryError(f"cannot pad a carry of {len(self)} rows to {rows}")
        return self._map(lambda t: torch.cat([t, t.new_zeros((missing, *t.shape[1:]))]))

    def check_like(self, other: Carry) -> None:
        """CarryError unless both records have the same fields with the same row shape, dtype and device."""
        if self._fields.keys() != other._fields.keys():
            raise CarryError(f"fields {sorted(self._fields)} do not match {sorted(other._fields)}")
        for name, field in self._fields.items():
            other_field = other._fields[name]
            if _row_type(field) != _row_type(other_field):
                raise CarryError(f"field {name!r}: {_row_type(field)} does not match {_row_type(other_field)}")

    def _map(self, function: Callable[[Tensor], Tensor]) -> Carry:
        return Carry({name: function(tensor) for name, tensor in self._fields.items()})


def _integers(rows: Sequence[int]) -> list[int]:
    try:
        return integers(rows, "rows of a carry")
    except BatchError as error:
        raise CarryError(str(error)) from error


def check_carry(carry: object) -> None:
    """CarryError unless it is a carry, this package's or another's."""
    if not all(hasattr(carry, name) for name in ("fields", "check_like")):
        raise CarryError(f"a {type(carry).__name__} is no carry")


def _row_type(tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype, torch.device]:
    return tuple(tensor.shape[1:]), tensor.dtype, tensor.device
