"""Tensors that belong to the engine: its request table, what else it brings, prompts, and rows of a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ..batch import LARGEST, check_rows, integers
from ..errors import BatchError, BindError
from ..plan.draft_head import MADE_OF
from ..plan.plan import BLOCKS, PROMPT, Input, Plan
from ..semantics.convention import DTYPES

Place = tuple[int, tuple[int, ...], tuple[int, ...]]


def check_request_table(plan: Plan, device: torch.device, table: Tensor) -> None:
    """BindError unless the table is i32[p, C], 1 <= p <= P, with adjacent columns, on the device."""
    if fault := plain_fault(table):
        raise BindError(f"{plan.table} {fault}")
    if table.dtype != torch.int32 or table.dim() != 2 or table.stride(1) != 1:
        layout = f"{table.dtype}{list(table.shape)} with strides {list(table.stride())}"
        raise BindError(f"{plan.table} must be int32 [P, C] with adjacent columns, got {layout}")
    if not 1 <= table.shape[0] <= plan.size("P"):
        raise BindError(f"{plan.table} has {table.shape[0]} rows, the program has {plan.size('P')} pool rows")
    if len(table) > 1 and table.stride(0) < table.shape[1]:
        step = f"{table.stride(0)} elements from row to row"
        raise BindError(f"{plan.table} has {step}, fewer than its {table.shape[1]} columns: requests would share slots")
    if table.device != device:
        raise BindError(f"{plan.table} is on {table.device}, the program on {device}")


def room(plan: Plan, columns: int) -> int:
    """Tokens that a row of so many columns of the engine's table has slots for."""
    return columns * plan.kv.page_size if plan.table == BLOCKS else columns


def check_tables(plan: Plan, device: torch.device, given: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
    """The tensors of `plan.tables()`, by name, those by pool row of P or `rows`. BindError unless all fit."""
    wanted = plan.tables()
    check_names("tables", given, wanted, "the program reads the tables")
    sizes = dict(plan.dims)
    for name, field in wanted.items():
        if name not in given:
            raise BindError(f"tables has no {name!r}: the program reads {field.dtype}[{', '.join(field.axes)}] there")
        if "P" in field.axes[:1]:
            sizes["P"] = rows if getattr(given[name], "shape", ())[:1] == (rows,) else plan.size("P")
        fault = _fault(field, device, given[name], sizes) or _entry_fault(field, given[name], plan)
        if fault:
            raise BindError(f"table {name!r} {fault}")
    return dict(given)


def check_names(what: str, given: Mapping[str, object], known: Collection[str], knows: str) -> None:
    """BindError unless `given`, called `what`, is a mapping by names that are known; `knows` says to whom."""
    if not isinstance(given, Mapping):
        raise BindError(f"{what} is a {type(given).__name__}, not a mapping by name")
    for name in given:
        if name not in known:
            raise BindError(f"{what} has {name!r}; {knows} {', '.join(sorted(known)) or 'none'}")


def plain_fault(tensor: object) -> str:
    """What makes something other than a dense tensor in memory of its own layout, or nothing."""
    if not isinstance(tensor, Tensor):
        return f"is a {type(tensor).__name__}, not a tensor"
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantised" if tensor.is_quantized else "nested" if tensor.is_nested else str(tensor.layout)
        return f"is {kind}, not a dense tensor"
    return ""


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
    fault = type_fault(Input(name, "i64", ("b",), "engine"), device, column, {} if count is None else {"b": count})
    if fault:
        raise BatchError(f"{name} {fault}")
    return column


def prompt_tokens(tokens: Sequence[int] | Tensor, count: int, vocabulary: int, device: torch.device) -> Tensor:
    """`tokens` as i64[count] on the device. BatchError when they are something else, or not that many.

    Integers must be in 0..vocabulary-1; the values of a tensor are not read.
    """
    if isinstance(tokens, Tensor):
        fault = _fault(Input(PROMPT, "i64", ("T",), "engine"), device, tokens, {})
        if fault:
            raise BatchError(f"{PROMPT} {fault}")
        prompt = tokens
    else:
        listed = integers(tokens, PROMPT)
        wrong = next((token for token in listed if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise BatchError(f"{PROMPT} has token {wrong}, the target knows 0..{vocabulary - 1}")
        host = torch.tensor(listed, dtype=torch.int64, pin_memory=device.type == "cuda")
        prompt = host.to(device, non_blocking=True)
    if len(prompt) != count:
        raise BatchError(f"{len(prompt)} {PROMPT} for prompts of {count} tokens")
    return prompt


def _fault(field: Input, device: torch.device, tensor: Tensor, sizes: dict[str, int]) -> str:
    """What is wrong with a tensor that kernels read in place, or nothing; see `type_fault`."""
    if fault := type_fault(field, device, tensor, sizes):
        return fault
    if tensor.numel() > LARGEST and field.name not in dict(MADE_OF.values()):  # places in a head have 64 bits
        return f"has {tensor.numel()} elements, more than {LARGEST}"
    if not tensor.is_contiguous():
        return f"has strides {list(tensor.stride())}, expected it contiguous"
    return ""


def _entry_fault(field: Input, tensor: Tensor, plan: Plan) -> str:
    """What is wrong with the entries of a table that has a limit, or nothing; they are read."""
    if not field.limit:
        return ""
    most = plan.size(field.limit)
    entries: list[int] = tensor.tolist()
    if wrong := [entry for entry in entries if not 0 <= entry < most]:
        return f"has the entry {wrong[0]}, the program reads 0..{most - 1}"
    falls = next(((a, b) for a, b in pairwise(entries) if a >= b), None)
    return f"has the entry {falls[1]} behind {falls[0]}, the program reads entries that ascend" if falls else ""


def type_fault(field: Input, device: torch.device, tensor: Tensor, sizes: dict[str, int]) -> str:
    """What is wrong with type and place of a tensor, or nothing; an axis that has no size yet takes the tensor's."""
    if fault := plain_fault(tensor):
        return fault
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
