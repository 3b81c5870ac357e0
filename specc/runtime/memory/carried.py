"""Carried fields that live in tables of the engine's own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import BindError
from ..plan.fields import told_strides
from ..plan.plan import Buffer, Plan
from ..semantics.convention import DTYPES
from .tables import check_names, plain_fault

ALIGNMENT = 16
"""Bytes that divide the address of a field: kernels read it in pieces of as many."""


def check_carried(plan: Plan, device: torch.device, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The engine's tensors by buffer. BindError unless each is T[P, ...] of a carried field, dense, on the device.

    Rows may be further apart than they are long where the kernels are told how far. What the engine writes is there.
    """
    check_names("carry", given, plan.carry, "the program carries")
    for name in sorted(n for n, field in plan.carry.items() if field.written_by == "engine" and n not in given):
        buffer = plan.buffers[f"relay.{name}"]
        held = f"{DTYPES[buffer.dtype]}{list(buffer.shape)}"
        raise BindError(f"carry has no {name!r}, which the engine writes: its table {held}")
    tensors: dict[str, Tensor] = {}
    for field, tensor in given.items():
        buffer = plan.buffers[f"relay.{field}"]
        if fault := plain_fault(tensor) or _fault(tensor, device, buffer, apart=told_strides(plan, field)):
            raise BindError(f"carried field {field!r} {fault}")
        tensors[buffer.name] = tensor
    return tensors


def _fault(tensor: Tensor, device: torch.device, buffer: Buffer, *, apart: bool) -> str:
    dtype, shape = DTYPES[buffer.dtype], buffer.shape
    if (tensor.dtype, tuple(tensor.shape)) != (dtype, tuple(shape)):
        return f"is {tensor.dtype}{list(tensor.shape)}, the program carries {dtype}{list(shape)}"
    if tensor.device != device:
        return f"is on {tensor.device}, the program on {device}"
    if apart and tensor.stride(1) == 1 and tensor.stride(0) >= tensor.shape[1]:
        return _address_fault(tensor)
    if not tensor.is_contiguous():
        expected = "its columns adjacent and its rows apart" if apart else "it contiguous"
        return f"has strides {list(tensor.stride())}, expected {expected}"
    return _address_fault(tensor)


def _address_fault(tensor: Tensor) -> str:
    if tensor.data_ptr() % ALIGNMENT:
        return f"is at address {tensor.data_ptr():#x}, expected alignment to {ALIGNMENT} bytes"
    return ""
