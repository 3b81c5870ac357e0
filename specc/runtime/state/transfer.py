"""Records: what a program carries for a request, as bytes that move from a machine that prefills to one that decodes.

Every offset and width comes from the plan's carried fields, so there is a record for every program.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from ..errors import FieldError, MissingFieldError, RecordError
from ..plan.plan import Plan
from ..rounding import round_up
from ..semantics.convention import DTYPES
from .carry import Carry
from .limits import CarriedField, carried_fields, check_limits
from .peer import schema_digest

ALIGNMENT = 16
"""Bytes that divide the offset of every field in a record, and the size of a record."""
HEADER = 16
"""Bytes before the first field: the tag and the checksum, both i64."""
Bytes: TypeAlias = bytes | bytearray | memoryview
Record: TypeAlias = Bytes | Tensor
Row: TypeAlias = Mapping[str, Tensor]
Requests: TypeAlias = Mapping[Any, Row | Record]
"""By request id: what came for it, its fields or its record."""


@dataclass(frozen=True)
class RecordField(CarriedField):
    """Where a carried field is in a record: `offset` bytes from its start."""

    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Size of the value."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def view(self, records: Tensor) -> Tensor:
        """The field T[n, ...] of records u8[n, record_bytes], in their memory."""
        held = records[:, self.offset : self.offset + self.nbytes]
        return held.view(DTYPES[self.dtype]).view(len(records), *self.shape)

    def check(self, request: Hashable, value: object) -> None:
        """FieldError unless `value` is a tensor of one request's dtype and shape."""
        if not _has_values(value):
            raise FieldError(request, self.name, f"is a {type(value).__name__}, not a tensor of values one by one")
        wanted = DTYPES[self.dtype]
        if value.dtype != wanted or tuple(value.shape) != self.shape:
            got = f"{value.dtype}{list(value.shape)}"
            raise FieldError(request, self.name, f"is {got}, the program carries {wanted}{list(self.shape)}")


@dataclass(frozen=True)
class RecordLayout:
    """The records of one program: a header, then the fields by name, each at a multiple of 16 bytes.

    The header's tag is the same for all programs that agree on their schema, its checksum that of all that follows.
    Bytes between the fields are 0. Numbers are in the machine's byte order, which is little endian wherever CUDA runs.

    Attributes:
        tag: first 8 bytes of the schema's digest.
        fields: in the order of their offsets.
        record_bytes: size of one record.

    """

    tag: int
    fields: tuple[RecordField, ...]
    record_bytes: int

    @staticmethod
    def of(plan: Plan, columns: int | None = None) -> RecordLayout:
        """The layout of the fields that move; `columns`: C, those of the request table, if there is one."""
        fields: list[RecordField] = []
        end = HEADER
        for field_ in carried_fields(plan, columns):
            fields.append(RecordField(**vars(field_), offset=end))
            end = round_up(end + fields[-1].nbytes, ALIGNMENT)
        tag = int.from_bytes(bytes.fromhex(schema_digest(plan))[:8], "little", signed=True)
        return RecordLayout(tag, tuple(fields), end)

    def pack(self, carry: Carry) -> Tensor:
        """The requests of a program's carry as records u8[n, record_bytes], on the same device; waits for nothing.

        CarryError when it is another program's.
        """
        device = next(tensor.device for tensor in carry.fields.values())
        carry.check_like(self._idle(device))
        records = torch.zeros((len(carry), self.record_bytes), dtype=torch.uint8, device=device)
        for field in self.fields:
            field.view(records).copy_(carry.fields[field.name])
        header = _header(records)
        header[:, 0] = self.tag
        header[:, 1] = _checksums(records)
        return records

    def unpack(self, records: Record, device: torch.device) -> Carry:
        """The carry on `device` of records u8[n, record_bytes], or of any number of them one after the other.

        Raises RecordError when they are not whole records of this layout, or damaged, FieldError when a value is beyond
        its field's limit. Waits for the device that the records are on.
        """
        table = _bytes(records)
        if table.dim() == 1 and len(table) % self.record_bytes == 0:
            table = table.view(-1, self.record_bytes)
        if table.dim() != 2 or table.shape[1] != self.record_bytes:
            raise RecordError(f"{list(table.shape)} bytes are not whole records of {self.record_bytes}")
        return self._verified(table, range(len(table)), device)

    def build_draft_input(self, requests: Requests, device: torch.device) -> Carry:
        """The carry on `device` of some requests, in their order; without any, 0 rows in the right dtypes and widths.

        Args:
            requests: by id, what came for each: its record, or its fields by name, in the shapes of one request.
            device: where the program is.

        Raises:
            MissingFieldError: a request lacks a field.
            FieldError: a request has a field that the program does not carry, one of another dtype or shape, or one
                with a value beyond its limit.
            RecordError: as `unpack`, naming the request.

        """
        rows = {request: given for request, given in requests.items() if isinstance(given, Mapping)}
        records = {request: given for request, given in requests.items() if not isinstance(given, Mapping)}
        place = {request: i for i, request in enumerate([*rows, *records])}
        carry = self._of_rows(rows, device).merge(self._of_records(records, device))
        return carry.filter([place[request] for request in requests])

    def _of_rows(self, rows: Mapping[Hashable, Row], device: torch.device) -> Carry:
        known = {field.name: field for field in self.fields}
        for request, row in rows.items():
            for name in row:
                if name not in known:
                    raise FieldError(request, name, f"is not carried by the program, which carries {', '.join(known)}")
            for name, field in known.items():
                if name not in row:
                    raise MissingFieldError(request, name, f"is missing; there are {', '.join(row) or 'none'}")
                field.check(request, row[name])
        if not rows:
            return self._idle(device)
        carry = Carry({name: _stack([row[name] for row in rows.values()]) for name in known})
        check_limits(self.fields, carry, list(rows))
        return Carry({name: values.to(device) for name, values in carry.fields.items()})

    def _of_records(self, records: Mapping[Hashable, Record], device: torch.device) -> Carry:
        copies: list[Tensor] = []
        for request, record in records.items():
            copies.append(_bytes(record, request))
            if tuple(copies[-1].shape) != (self.record_bytes,):
                got = f"{list(copies[-1].shape)} bytes, not the {self.record_bytes} of one record"
                raise RecordError(f"request {request!r} has {got}", request)
        if not copies:
            return self._idle(device)
        return self._verified(_stack(copies), list(records), device)

    def _idle(self, device: torch.device) -> Carry:
        return self._carry(torch.empty((0, self.record_bytes), dtype=torch.uint8, device=device))

    def _verified(self, table: Tensor, requests: Sequence[Hashable], device: torch.device) -> Carry:
        """The carry on `device` of records u8[n, record_bytes], when nothing is wrong with them."""
        self._verify(table, requests)
        check_limits(self.fields, self._carry(table), requests)
        return self._carry(table.to(device))

    def _verify(self, table: Tensor, requests: Sequence[Hashable]) -> None:
        """RecordError unless every record has this layout's tag and the checksum of its content."""
        header = _header(table)
        faults = torch.stack([header[:, 0] != self.tag, header[:, 1] != _checksums(table)], dim=1)
        for request, (foreign, damaged) in zip(requests, faults.tolist(), strict=True):
            if foreign:
                raise RecordError(f"record {request!r} has the tag of another program's schema", request)
            if damaged:
                raise RecordError(f"record {request!r} is damaged: its checksum is another", request)

    def _carry(self, table: Tensor) -> Carry:
        """The fields of records, in their memory."""
        return Carry({field.name: field.view(table) for field in self.fields})


def _has_values(value: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor that has its values one by one: none that is sparse, several, or of no memory."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_meta or value.is_nested)


def _bytes(record: object, request: Hashable = None) -> Tensor:
    """A copy u8[...] of a record that the views of its fields can be taken of."""
    if _has_values(record) and record.dtype == torch.uint8:
        return record.clone(memory_format=torch.contiguous_format)
    if isinstance(record, bytes | bytearray | memoryview):
        held = bytearray(record)
        return torch.frombuffer(held, dtype=torch.uint8) if held else torch.empty(0, dtype=torch.uint8)
    got = record.dtype if isinstance(record, Tensor) else type(record).__name__
    raise RecordError(f"a record is bytes or a tensor of uint8, got {got} of request {request!r}", request)


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors as one, where the first of them is."""
    return torch.stack([tensor.to(tensors[0].device) for tensor in tensors])


def _header(records: Tensor) -> Tensor:
    """Tag and checksum, i64[n, 2], in the memory of the records."""
    return records[:, :HEADER].view(torch.int64)


def _checksums(records: Tensor) -> Tensor:
    """One i64 per record: the words after the header, each times another odd number, added up modulo 2**64.

    Odd numbers can be divided by modulo 2**64, so a single changed word always shows.
    """
    words = records[:, HEADER:].view(torch.int64)
    return (words * (torch.arange(words.shape[1], device=words.device) * 2 + 1)).sum(1)
