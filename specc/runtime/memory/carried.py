"""Carried fields that live in tables of the engine's own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import BindError
from ..plan.plan import Plan
from ..semantics.convention import DTYPES
from .tables import check_names, plain_fault

ALIGNMENT = 16
"""Bytes that divide the address of a field: kernels read it in pieces of as many."""


def check_carried(plan: Plan, device: torch.device, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The engine's tensors by buffer. BindError unless each is T[P, ...] of a carried field, dense, on the device."""
    check_names("carry", given, plan.carry, "the program carries")
    found: dict[str, Tensor] = {}
    for field, tensor in given.items():
        buffer = plan.buffers[f"relay.{field}"]
        if fault := plain_fault(tensor) or _fault(tensor, device, DTYPES[buffer.dtype], buffer.shape):
            raise BindError(f"carried field {field!r} {fault}")
        found[buffer.name] = tensor
    return found


def _fault(tensor: Tensor, device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    if (tensor.dtype, tuple(tensor.shape)) != (dtype, tuple(shape)):
        return f"is {tensor.dtype}{list(tensor.shape)}, the program carries {dtype}{list(shape)}"
    if tensor.device != device:
        return f"is on {tensor.device}, the program on {device}"
    if not tensor.is_contiguous():
        return f"has strides {list(tensor.stride())}, expected it contiguous"
    if tensor.data_ptr() % ALIGNMENT:
        return f"is at address {tensor.data_ptr():#x}, expected alignment to {ALIGNMENT} bytes"
    return ""
