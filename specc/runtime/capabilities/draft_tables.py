"""Tables that a program reads of its draft and the runtime makes: the weights of its head, and entries of tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..bound import BoundStep
from ..errors import BindError
from ..plan.draft_head import MADE, MADE_OF, TOKEN_ENTRIES, WEIGHT
from ..plan.plan import RANK, TOKEN_MAP, Plan
from ..semantics.convention import DTYPES

LARGEST = {"i8": 127.0, "f8": 448.0}
"""The largest number of a dtype of 8 bits, that of a row's largest weight."""
ROWS = 8192
"""Rows that are made at a time, so that their copies in f32 take little memory."""
ALIGNMENT = 16
"""Bytes that divide the address of what kernels read."""


class DraftTablesStep(BoundStep):
    """A step that reads tables which are made of the engine's; all shapes of a binding have the same."""

    def _brought(self, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As of any step, and those that are made."""
        given, first = super()._brought(tables), self._first_shape()
        made = {} if first is self else {name: table for name, table in first._tables.items() if name in MADE}
        return draft_tables(self._plan, {**given, **made})


def draft_tables(plan: Plan, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tables that a program reads, by name, of the engine's and of those that are made already.

    BindError as of `head_tables`.
    """
    kept = {weight: engines for weight, (engines, _) in MADE_OF.items() if weight in plan.inputs}
    read = {name: table for name, table in tables.items() if name not in kept.values()}
    rank = int(tables[RANK]) if RANK in tables else 0
    for weight in (weight for weight in kept if weight not in read):
        read |= head_tables(plan, tables[kept[weight]], tables.get(TOKEN_MAP), rank, weight)
    if TOKEN_ENTRIES in plan.inputs and TOKEN_ENTRIES not in read:
        read[TOKEN_ENTRIES] = token_entries(plan, tables[TOKEN_MAP])
    return read


def token_entries(plan: Plan, tokens: Tensor) -> Tensor:
    """The entries i32[V] of the draft's vocabulary that tokens are, by its map i64[Vd]: -1 of those that it has not."""
    entries = torch.full((plan.size("V"),), -1, dtype=torch.int32, device=tokens.device)
    entries[tokens] = torch.arange(len(tokens), dtype=torch.int32, device=tokens.device)
    return entries


def head_tables(
    plan: Plan, head: Tensor, tokens: Tensor | None, rank: int = 0, name: str = WEIGHT
) -> dict[str, Tensor]:
    """The weights T[n, W] of the entries that a rank scores, and f32[n] what one is worth if they have 8 bits.

    head: the engine's, T[H, W], of all entries or, without a map, the n of the rank. tokens: which of its entries are
    scored, i64[Vd], ascending; if it has no others, all. Of R ranks with n entries each, one scores those from rank * n
    on; what is behind the last of all is zeros, or what a rank's own head has there, and nobody looks at it. name: that
    of the weights, see `MADE_OF`.
    Where nothing changes it is the engine's own tensor, else a copy. Weights of 8 bits are the nearest to the true ones
    over the scale of their row, with which its largest is the dtype's largest: in i8 half a scale away at most, in f8
    (e4m3, three bits of mantissa) a sixteenth of the weight, or 2^-10 scales where it is small. BindError for entries
    that the head has not, and in 8 bits for weights that are not finite.
    """
    count, dtype, (engines, scales) = plan.size(plan.inputs[name].axes[0]), plan.inputs[name].dtype, MADE_OF[name]
    head = _entries(plan, engines, head, tokens, rank * count, count)
    if dtype not in LARGEST:
        return {name: head if len(head) == count and head.data_ptr() % ALIGNMENT == 0 else _filled(head, count)}
    weight = torch.zeros((count, head.shape[1]), dtype=DTYPES[dtype], device=head.device)
    scale = torch.zeros(count, dtype=torch.float32, device=head.device)
    scored = max(0, min(len(head), plan.size("Vd") - rank * count))
    for begin in range(0, scored, ROWS):
        rows = head[begin : min(begin + ROWS, scored)].to(torch.float32)
        if not bool(rows.isfinite().all()):
            why = f"weights that are not finite, which {DTYPES[dtype]} has no place for"
            raise BindError(f"table {engines!r} has {why}")
        largest = rows.abs().amax(dim=1)
        worth = torch.where(largest > 0, largest, 1.0) / LARGEST[dtype]
        whole = rows / worth[:, None]
        weight[begin : begin + len(rows)] = (whole.round() if dtype == "i8" else whole).to(weight.dtype)
        scale[begin : begin + len(rows)] = worth
    return {name: weight, scales: scale}


def _entries(plan: Plan, name: str, head: Tensor, tokens: Tensor | None, first: int, count: int) -> Tensor:
    """A head's `count` entries from the first one on; fewer where there are no more. BindError as `head_tables`."""
    entries, own = plan.size("Vd"), slice(first, first + count)
    if len(head) == entries:
        return head[own] if count < entries else head
    if tokens is None:
        if len(head) == count:
            return head
        wanted = f"{entries}, or {count} on each rank" if count < entries else str(entries)
    else:
        if len(head) > (last := int(tokens[-1])):
            return head[tokens[own]]
        wanted = f"{entries}, or more than {last}"
    raise BindError(f"table {name!r} has {len(head)} entries, the program reads {wanted}")


def _filled(rows: Tensor, count: int) -> Tensor:
    """A copy of rows T[n, W] with rows of zeros behind them, T[count, W]."""
    return torch.cat((rows, rows.new_zeros((count - len(rows), rows.shape[1]))))
