"""What the values of carried fields are held to, whoever brings them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import FieldError
from ..plan.fields import own
from ..plan.plan import CONTEXT_AXIS, Carried, Plan
from ..semantics.convention import DTYPES
from .carry import Carry

UNLIMITED = 2**63 - 1
"""What bounds a field whose limit is an axis that nobody knows here: at least it is not negative."""
LEAST = {"drafts": -1}
"""The least integer that a field of a rotated program carries, by field: it stands for a draft that there is not."""


@dataclass(frozen=True)
class CarriedField:
    """A field that moves with its request.

    Attributes:
        name: of the field.
        dtype: as the plan spells it.
        shape: of one request's value.
        limit: integers are at least `least` and less than it, other numbers from 0 to it, or, where it is negative,
            from it to its opposite; None if any value is one.
        least: of integers.

    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    limit: int | None = None
    least: int = 0

    def inside(self, values: Tensor) -> Tensor:
        """Which numbers T[...] keep to the limit; NaN keeps to none."""
        limit = UNLIMITED if self.limit is None else self.limit
        if DTYPES[self.dtype].is_floating_point:
            return (values >= min(limit, 0)) & (values <= abs(limit))
        numbers = values.to(torch.int64)
        return (numbers >= self.least) & (numbers < limit)

    def fault(self, value: Tensor) -> str:
        """What is wrong with a value that does not keep to the limit, by its first such number."""
        first = value[~self.inside(value)][0].item()
        if self.limit == UNLIMITED:
            return f"holds {first}, the program carries no negative numbers there"
        end, limit = "]" if DTYPES[self.dtype].is_floating_point else ")", self.limit or 0
        return f"holds {first}, the program carries numbers in [{min(limit, self.least)}, {abs(limit)}{end} there"


def carried_fields(plan: Plan, columns: int | None = None) -> tuple[CarriedField, ...]:
    """The fields that move, by name; `columns`: C, those of the request table, if there is one."""
    # A text may fill its row of the table: whether a step has room behind it, is asked where it decodes.
    sizes = plan.dims if columns is None else {**plan.dims, CONTEXT_AXIS: columns + 1}
    least = LEAST if plan.rotated else {}
    return tuple(
        CarriedField(name, field.dtype, tuple(map(plan.size, field.axes[1:])), _limit(field, sizes), least.get(name, 0))
        for name, field in sorted(own(plan).items())
    )


def check_limits(fields: Sequence[CarriedField], carry: Carry, requests: Sequence[Hashable]) -> None:
    """FieldError unless all values of the requests' carry keep to their limits. Waits for its device."""
    limited = [field for field in fields if field.limit is not None]
    if not limited or not requests:
        return
    inside = [field.inside(carry.fields[field.name]).reshape(len(requests), -1).all(1) for field in limited]
    for row, (request, right) in enumerate(zip(requests, torch.stack(inside, dim=1).tolist(), strict=True)):
        for field, fine in zip(limited, right, strict=True):
            if not fine:
                raise FieldError(request, field.name, field.fault(carry.fields[field.name][row]))


def _limit(carried: Carried, sizes: Mapping[str, int]) -> int | None:
    """What the values of a carried field are compared with."""
    if carried.limit is None:
        return None
    number = carried.limit.removeprefix("-").isdecimal()
    return int(carried.limit) if number else sizes.get(carried.limit, UNLIMITED)
