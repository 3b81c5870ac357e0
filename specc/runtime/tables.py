"""Tensors that belong to the engine: its request table, what else it brings, prompts, and rows of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .batch import check_rows, integers
from .errors import BatchError, BindError
from .plan import PROMPT, TABLE, Field, Plan
from .semantics import DTYPES

Place = tuple[int, tuple[int, ...], tuple[int, ...]]

LARGEST = 1 << 30
"""Most elements of a tensor that the engine brings: kernels number them in 32 bits."""


def check_request_table(plan: Plan, device: torch.device, table: Tensor) -> None:
    """BindError unless the table is i32[p, C], 1 <= p <= P, with adjacent columns, on the device."""
    if table.dtype != torch.int32 or table.dim() != 2 or table.stride(1) != 1:
        layout = f"{table.dtype}{list(table.shape)} with strides {list(table.stride())}"
        raise BindError(f"{TABLE} must be int32 [P, C] with adjacent columns, got {layout}")
    if not 1 <= table.shape[0] <= plan.size("P"):
        raise BindError(f"{TABLE} has {table.shape[0]} rows, the program has {plan.size('P')} pool rows")
    if table.device != device:
        raise BindError(f"{TABLE} is on {table.device}, the program on {device}")


def check_tables(plan: Plan, device: torch.device, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `plan.tables()`, by name. BindError when one is missing, unknown, or does not fit."""
    wanted = {field.name: field for field in plan.tables()}
    for name in sorted(set(given) - set(wanted)):
        known = ", ".join(sorted(wanted)) or "none"
        raise BindError(f"tables has {name!r}; the program reads the tables {known}")
    sizes = dict(plan.dims)
    for name, field in wanted.items():
        if name not in given:
            raise BindError(f"tables has no {name!r}: the program reads {field.dtype}[{', '.join(field.axes)}] there")
        fault = _fault(field, device, given[name], sizes)
        if fault:
            raise BindError(f"table {name!r} {fault}")
    return dict(given)


class TableGuard:
    """Remembers where tensors are: captured kernels hold their addresses and strides."""

    def __init__(self, tables: Mapping[str, Tensor]) -> None:
        """Remember the tensors as they are now."""
        self._tables = dict(tables)
        self._seen = self._places()

    def check(self) -> None:
        """BindError when a tensor has moved or changed its layout since."""
        for name, place in self._places().items():
            if place != self._seen[name]:
                raise BindError(f"{name} has moved or changed its layout since bind; bind the step again")

    def _places(self) -> dict[str, Place]:
        return {name: (t.data_ptr(), tuple(t.shape), t.stride()) for name, t in self._tables.items()}


def batch_rows(rows: Sequence[int] | Tensor, pool_rows: int, device: torch.device) -> list[int] | Tensor:
    """Rows as `check_rows` has them, or i64[b] on the device, as they are. BatchError when they are something else."""
    if isinstance(rows, Tensor):
        return batch_column("req_pool_indices", rows, device)
    return check_rows(rows, pool_rows)


def batch_column(name: str, column: Tensor, device: torch.device, count: int | None = None) -> Tensor:
    """The column itself. BatchError unless it is i64[count], or i64[any], on the device; its values are not read."""
    fault = _type_fault(Field(name, "i64", ("b",)), device, column, {} if count is None else {"b": count})
    if fault:
        raise BatchError(f"{name} {fault}")
    return column


def prompt_tokens(tokens: Sequence[int] | Tensor, count: int, device: torch.device) -> Tensor:
    """`tokens` as i64[count] on the device. BatchError when they are something else, or not that many."""
    if isinstance(tokens, Tensor):
        fault = _fault(Field(PROMPT, "i64", ("T",)), device, tokens, {})
        if fault:
            raise BatchError(f"{PROMPT} {fault}")
        found = tokens
    else:
        listed = integers(tokens, PROMPT)
        host = torch.tensor(listed, dtype=torch.int64, pin_memory=device.type == "cuda")
        found = host.to(device, non_blocking=True)
    if len(found) != count:
        raise BatchError(f"{len(found)} {PROMPT} for prompts of {count} tokens")
    return found


def _fault(field: Field, device: torch.device, tensor: object, sizes: dict[str, int]) -> str:
    """What is wrong with a tensor that kernels read in place, or nothing; see `_type_fault`."""
    if not isinstance(tensor, Tensor):
        return f"is a {type(tensor).__name__}, not a tensor"
    if fault := _type_fault(field, device, tensor, sizes):
        return fault
    if tensor.numel() > LARGEST:
        return f"has {tensor.numel()} elements, more than {LARGEST}"
    if not tensor.is_contiguous():
        return f"has strides {list(tensor.stride())}, expected it contiguous"
    return ""


def _type_fault(field: Field, device: torch.device, tensor: Tensor, sizes: dict[str, int]) -> str:
    """What is wrong with type and place of a tensor, or nothing; an axis that has no size yet takes the tensor's."""
    if tensor.dtype != DTYPES[field.dtype]:
        return f"is {tensor.dtype}, the program reads {DTYPES[field.dtype]}"
    axes = ", ".join(field.axes)
    if tensor.dim() != len(field.axes):
        return f"has shape {list(tensor.shape)}, the program reads [{axes}]"
    wanted = [
        int(axis) if axis.isdecimal() else sizes.setdefault(axis, size)
        for axis, size in zip(field.axes, tensor.shape, strict=True)
    ]
    if list(tensor.shape) != wanted:
        return f"has shape {list(tensor.shape)}, the program reads [{axes}], here {wanted}"
    if tensor.device != device:
        return f"is on {tensor.device}, the program on {device}"
    return ""
