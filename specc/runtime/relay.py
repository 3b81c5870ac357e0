"""State between steps: one pool buffer `relay.<field>` per carried field, T[P, ...], addressed by pool row."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

import torch
from torch import Tensor

from .arena import Arena
from .batch import check_rows
from .carry import Carry
from .errors import CarryError
from .plan import Plan


class RelayPools(MutableMapping[str, Tensor]):
    """The pools by field. Setting one copies into its buffer: addresses never change."""

    def __init__(self, plan: Plan, arena: Arena) -> None:
        """The pools of `plan`'s carried fields in `arena`."""
        self._pools = {field: arena.buffer(f"relay.{field}") for field in plan.carry}

    def __getitem__(self, field: str) -> Tensor:
        """The pool of a field, T[P, ...]."""
        return self._pools[field]

    def __setitem__(self, field: str, pool: Tensor) -> None:
        """Replace the content of a pool."""
        self._pools[field].copy_(pool)

    def __delitem__(self, field: str) -> None:
        """Pools cannot be removed."""
        raise TypeError("the pools of a program are fixed")

    def __iter__(self) -> Iterator[str]:
        """The carried fields."""
        return iter(self._pools)

    def __len__(self) -> int:
        """Number of carried fields."""
        return len(self._pools)


class Relay:
    """Moves carried state out of and into the pool rows, as a `Carry`."""

    def __init__(self, plan: Plan, pools: RelayPools) -> None:
        """A view of `pools`; holds no state of its own."""
        self._plan = plan
        self._pools = pools

    def read(self, rows: Sequence[int]) -> Carry:
        """A copy of the state of pool rows `rows`, in that order. BatchError on rows out of range or repeated."""
        index = self._index(rows)
        return Carry({field: self._pools[field][index] for field in self._pools})

    def write(self, rows: Sequence[int], carry: Carry) -> None:
        """Put row i of `carry` into pool row `rows[i]`.

        Raises CarryError when the carry does not fit the program or has another number of rows, BatchError as `read`;
        nothing is written then.
        """
        index = self._index(rows)
        if len(carry) != len(rows):
            raise CarryError(f"a carry of {len(carry)} rows for {len(rows)} pool rows")
        carry.check_like(self.read([]))
        for field, values in carry.fields.items():
            self._pools[field][index] = values

    def _index(self, rows: Sequence[int]) -> Tensor:
        checked = check_rows(rows, self._plan.size("P"))
        device = next(iter(self._pools.values())).device if self._pools else None
        return torch.tensor(checked, dtype=torch.int64, device=device)
