"""State between steps: one pool buffer `relay.<field>` per carried field, T[P, ...], addressed by pool row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ..errors import CarryError
from ..memory.arena import Arena
from ..memory.tables import batch_rows
from ..plan.plan import Plan
from .carry import Carry, check_carry
from .limits import CarriedField, check_limits
from .torn import Torn


class RelayPools(Mapping[str, Tensor]):
    """The pools by field: buffers of the arena, whose addresses never change."""

    def __init__(self, plan: Plan, arena: Arena) -> None:
        """The pools of `plan`'s carried fields in `arena`."""
        self._pools = {field: arena.buffer(f"relay.{field}") for field in plan.carry}

    def __getitem__(self, field: str) -> Tensor:
        """The pool of a field, T[P, ...]."""
        return self._pools[field]

    def __iter__(self) -> Iterator[str]:
        """The carried fields."""
        return iter(self._pools)

    def __len__(self) -> int:
        """Number of carried fields."""
        return len(self._pools)


class Relay:
    """Moves carried state out of and into the pool rows, as a `Carry`."""

    def __init__(
        self, pools: RelayPools, rows: int, device: torch.device, fields: Sequence[CarriedField], torn: Torn
    ) -> None:
        """A view of `pools`, of which requests use the first `rows` rows; holds no state of its own."""
        self._pools, self._rows, self._device = pools, rows, device
        self._fields, self._torn = fields, torn
        self._own = [field.name for field in fields]

    def read(self, rows: Sequence[int] | Tensor) -> Carry:
        """A copy of the state of pool rows `rows`, in that order, but for what the engine writes.

        BatchError on rows out of range or repeated, TornError on torn ones. The
        values of a tensor i64[n] on the device are not checked otherwise, and nobody waits unless some row is torn.
        """
        checked = batch_rows(rows, self._rows, self._device)
        self._torn.check(checked)
        index = self._index(checked)
        return Carry({field: self._pools[field][index] for field in self._own})

    def write(self, rows: Sequence[int] | Tensor, carry: Carry) -> None:
        """Put row i of `carry` into pool row `rows[i]`, which is not torn any more.

        Raises CarryError when the carry does not fit the program, as with a field that the engine writes, or has
        another number of rows, BatchError as `read`,
        FieldError when a value is beyond its field's limit; nothing is written then. With rows as a tensor no value is
        checked, and nobody waits.
        """
        checked = batch_rows(rows, self._rows, self._device)
        check_carry(carry)
        if outside := sorted(carry.fields.keys() & self._pools.keys() - set(self._own)):
            raise CarryError(f"field {outside[0]!r} is the engine's, which writes it in a table of its own")
        if len(carry) != len(checked):
            raise CarryError(f"a carry of {len(carry)} rows for {len(rows)} pool rows")
        carry.check_like(Carry({field: self._pools[field][:0] for field in self._own}))
        if not isinstance(rows, Tensor):
            check_limits(self._fields, carry, rows)
        index = self._index(checked)
        with self._torn.unless_done(checked):
            for field, values in carry.fields.items():
                self._pools[field][index] = values
        self._torn.mend(checked)

    def _index(self, rows: list[int] | Tensor) -> Tensor:
        return rows if isinstance(rows, Tensor) else torch.tensor(rows, dtype=torch.int64, device=self._device)
