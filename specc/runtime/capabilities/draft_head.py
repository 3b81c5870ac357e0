"""The head of a draft's vocabulary, which a program multiplies hidden rows by itself: its weights, as it reads them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..bound import BoundStep
from ..errors import BindError
from ..plan.draft_head import HEAD, SCALE, WEIGHT
from ..plan.plan import TOKEN_MAP, Plan
from ..semantics.convention import DTYPES

LARGEST = {"i8": 127.0, "f8": 448.0}
"""The largest number of a dtype of 8 bits, that of a row's largest weight."""
ROWS = 8192
"""Rows that are made at a time, so that their copies in f32 take little memory."""
ALIGNMENT = 16
"""Bytes that divide the address of what kernels read."""


class HeadStep(BoundStep):
    """A step whose draft hands over what its head reads."""

    def _brought(self, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As of any step, with the weights that the program reads in place of the engine's head."""
        given, first = super()._brought(tables), self._first_shape()
        if (head := given.pop(HEAD, None)) is None:
            return given
        if first is not self:
            return given | {name: one for name, one in first._tables.items() if name in (WEIGHT, SCALE)}
        return given | head_tables(self._plan, head, given.get(TOKEN_MAP))


def head_tables(plan: Plan, head: Tensor, tokens: Tensor | None) -> dict[str, Tensor]:
    """The weights T[Vd, W] of the entries that a program scores, and f32[Vd] what one is worth if they have 8 bits.

    head: the engine's, T[H, W]. tokens: which of its entries are scored, i64[Vd], ascending; if it has no others, all.
    Where nothing changes it is the engine's own tensor, else a copy. Weights of 8 bits are the nearest to the true ones
    over the scale of their row, with which its largest is the dtype's largest: in i8 half a scale away at most, in f8
    (e4m3, three bits of mantissa) a sixteenth of the weight, or 2^-10 scales where it is small. BindError for entries
    that the head has not, and in 8 bits for weights that are not finite.
    """
    entries, dtype = plan.size("Vd"), plan.inputs[WEIGHT].dtype
    if len(head) != entries:
        last = None if tokens is None else int(tokens[-1])
        if tokens is None or last is None or len(head) <= last:
            wanted = str(entries) if last is None else f"{entries}, or more than {last}"
            raise BindError(f"table {HEAD!r} has {len(head)} entries, the program reads {wanted}")
        head = head[tokens]
    if dtype not in LARGEST:
        return {WEIGHT: head if head.data_ptr() % ALIGNMENT == 0 else head.clone()}
    weight = torch.empty(head.shape, dtype=DTYPES[dtype], device=head.device)
    scale = torch.empty(entries, dtype=torch.float32, device=head.device)
    for begin in range(0, entries, ROWS):
        rows = head[begin : begin + ROWS].to(torch.float32)
        if not bool(rows.isfinite().all()):
            raise BindError(f"table {HEAD!r} has weights that are not finite, which {DTYPES[dtype]} has no place for")
        largest = rows.abs().amax(dim=1)
        worth = torch.where(largest > 0, largest, 1.0) / LARGEST[dtype]
        whole = rows / worth[:, None]
        weight[begin : begin + ROWS] = (whole.round() if dtype == "i8" else whole).to(weight.dtype)
        scale[begin : begin + ROWS] = worth
    return {WEIGHT: weight, SCALE: scale}
