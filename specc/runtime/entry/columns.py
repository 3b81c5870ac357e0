"""A batch as an entry of a program reads it: checked columns, by the name of the input."""

from __future__ import annotations

from dataclasses import fields

from torch import Tensor

from ..batch import Batch, check_lengths
from ..errors import BatchError
from ..memory.tables import batch_column, batch_rows
from ..memory.tables import room as room_of
from ..plan.plan import PROMPT, Plan

ROWS, LENGTHS, LENS = "req_pool_indices", "seq_lens", "verify_lens"
NAMES = tuple(field.name for field in fields(Batch))
"""What a batch has, this package's or another's."""


class Columns:
    """What `prefill` or `step` reads of a batch.

    Attributes:
        inputs: the inputs of the entry that come from a batch and that the runtime writes, sorted.

    """

    def __init__(self, plan: Plan, entry: str, table: Tensor) -> None:
        """The inputs of an entry of `plan`, for requests in rows of the engine's table i32[p, C]."""
        self.inputs = plan.written_inputs(entry)
        self._entry, self._table = entry, table
        # A draft at true positions prefills the first token behind the prompt.
        drafts = entry == "step" or plan.rotated
        self._beyond = plan.kv.window if drafts else plan.kv.first_draft_position
        self._longest, self._room = plan.kv.longest, room_of(plan, table.shape[1])
        self._reads = {name: name in plan.reads(entry) for name in (PROMPT, LENS)}

    def of(self, batch: Batch) -> dict[str, list[int] | Tensor]:
        """The batch by input name: checked lists of integers, or tensors i64[b] on the device.

        BatchError when it is no batch, or none that the entry can run, but for how many requests it has.
        """
        if not all(hasattr(batch, name) for name in NAMES):
            raise BatchError(f"{self._entry} takes a Batch, got a {type(batch).__name__}")
        pool_rows, room = self._table.shape[0], self._room
        rows = batch_rows(batch.req_pool_indices, pool_rows, self._table.device)
        columns: dict[str, list[int] | Tensor] = {ROWS: rows}
        room -= self._beyond
        room = room if self._longest is None else min(room, int(self._longest))
        if isinstance(batch.seq_lens, Tensor):
            columns[LENGTHS] = batch_column(LENGTHS, batch.seq_lens, self._table.device, len(rows))
        elif batch.seq_lens is not None:
            columns[LENGTHS] = check_lengths(batch.seq_lens, rows, room)
        elif self._entry == "prefill" or LENGTHS in self.inputs:
            raise BatchError(f"{self._entry} needs the batch's seq_lens")
        for name, read in self._reads.items():
            if (getattr(batch, name) is not None) != read:
                raise BatchError(f"{self._entry} {'needs' if read else 'does not read'} the batch's {name}")
        return columns
