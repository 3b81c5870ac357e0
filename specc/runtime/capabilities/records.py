"""What a program has whose requests move to another machine: records of them, and what both machines must agree on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..bound import BoundStep
from ..memory.tables import room
from ..plan.plan import Plan
from ..state.carry import Carry
from ..state.peer import schema, schema_digest
from ..state.transfer import Record, RecordLayout, Requests


class RecordedProgram:
    """A loaded program whose requests move as records.

    Attributes:
        plan: the program.
        device: where it runs.

    """

    plan: Plan
    device: torch.device

    @cached_property
    def record_layout(self) -> RecordLayout:
        """The layout of the records in which requests move to another machine."""
        return RecordLayout.of(self.plan)

    @property
    def schema(self) -> dict[str, Any]:
        """What a peer's program must agree on, see `peer.schema`; for `check_peer`."""
        return schema(self.plan)

    @property
    def schema_digest(self) -> str:
        """The sha256 of the schema, in hex."""
        return schema_digest(self.plan)

    def build_draft_input(self, requests: Requests) -> Carry:
        """The carry of requests that another machine prefilled, for `Step.write_carry`.

        `requests` has by id a record, or every carried field by name; see `RecordLayout.build_draft_input`.
        """
        return self.record_layout.build_draft_input(requests, self.device)


class RecordedStep(BoundStep):
    """A step whose requests move as records; its table bounds their lengths."""

    def pack(self, rows: Sequence[int] | Tensor) -> Tensor:
        """The state of pool rows `rows` as records u8[n, record_bytes] on the device. BatchError as `read_carry`."""
        return self._layout.pack(self.read_carry(rows))

    def unpack(self, records: Record) -> Carry:
        """The carry of records that `pack` made, anywhere. RecordError, see `RecordLayout.unpack`."""
        return self._layout.unpack(records, self._device)

    def build_draft_input(self, requests: Requests) -> Carry:
        """As `Program.build_draft_input`."""
        return self._layout.build_draft_input(requests, self._device)

    @cached_property
    def _layout(self) -> RecordLayout:
        return RecordLayout.of(self._plan, room(self._plan, self._table.shape[1]))
