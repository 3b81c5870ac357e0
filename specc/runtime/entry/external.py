"""Calls into the engine's forwards, and the checks of what they return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import BindError, ForwardContractError
from ..memory.tables import plain_fault
from ..plan.fields import row_stride
from ..plan.nodes import External
from ..plan.plan import Plan
from ..semantics.convention import DTYPES
from .frame import Frame

STEP_AXIS = "D"


@dataclass(frozen=True)
class Forward:
    """What a callback returns: logits, or `states` if the program computes the head, and hidden states if captured.

    Contiguous tensors on the program's device, as the plan has them; read in place, so valid until the step's end.
    """

    logits: Tensor | None = None
    hidden: Tensor | None = None
    states: Tensor | None = None


def check_callbacks(plan: Plan, callbacks: object, entry: str) -> None:
    """BindError unless `callbacks` has every method that an entry of the plan calls, with the arguments it is given.

    It names all that are missing. What tells nothing of its arguments, as some compiled functions, is let through.
    """
    missing = [name for name in plan.callbacks(entry) if not callable(getattr(callbacks, name, None))]
    if missing:
        raise BindError(f"callbacks lack the method(s) {', '.join(missing)}")
    for node in plan.nodes(entry):
        if isinstance(node, External) and (fault := _signature_fault(node, getattr(callbacks, node.callback))):
            raise BindError(f"callback {node.callback} does not take what it is called with: {fault}")


def _signature_fault(node: External, callback: Callable[..., object]) -> str:
    """What of the node's call is missing in a signature, or too much; nothing if it has none."""
    try:
        signature = inspect.signature(callback, follow_wrapped=False)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(**_arguments(node, node.operands))
    except TypeError as error:
        return str(error)
    return ""


def _arguments(node: External, operands: Mapping[str, object]) -> dict[str, Any]:
    """The keyword arguments of a call."""
    arguments = {"step": node.step, "capture": node.capture}
    return {**operands, **{name: value for name, value in arguments.items() if value is not None}}


def call(node: External, frame: Frame, callbacks: object) -> None:
    """Run one forward and let its results stand for the node's values. ForwardContractError on a breach."""
    operands = {name: _operand(node, frame, value) for name, value in node.operands.items()}
    returned = getattr(callbacks, node.callback)(**_arguments(node, operands))
    for result, value in node.results.items():
        where, tensor = f"{node.callback} returned {result}", getattr(returned, result, None)
        frame.adopt(value, checked(where, frame, value, tensor))


def _operand(node: External, frame: Frame, name: str) -> Tensor:
    """A static view; a value with an axis of draft forwards is cut to the node's forward."""
    tensor = frame.read(name)
    value = frame.plan.values.get(name)
    if node.step is not None and value is not None and value.axes[:1] == (STEP_AXIS,):
        return tensor[node.step]
    return tensor


def checked(where: str, frame: Frame, name: str, tensor: object, rows: int | None = None) -> Tensor:
    """The tensor, if it is what the plan says of a value. ForwardContractError, which begins with `where`, if not.

    `rows`: those that it has of the run, where they are not all.
    """
    value = frame.plan.values[name]
    if not isinstance(tensor, Tensor):
        raise ForwardContractError(f"{where} {tensor!r}, expected {_spell(value.dtype, value.axes)}")
    if fault := plain_fault(tensor):
        raise ForwardContractError(f"{where}, which {fault}")
    shape, dtype = frame.shape(name), DTYPES[value.dtype]
    shape = shape if rows is None else (rows, *shape[1:])
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        got = f"{tensor.dtype}{list(tensor.shape)}"
        expected = f"{dtype}{list(shape)} ({_spell(value.dtype, value.axes)})"
        raise ForwardContractError(f"{where} as {got}, expected {expected}")
    if tensor.device != frame.table.device:
        raise ForwardContractError(f"{where} on {tensor.device}, expected {frame.table.device}")
    if not _lies(tensor, row := row_stride(frame.plan, name)):
        expected = "it contiguous" if row <= shape[-1] else f"its rows {row} elements apart, as the plan has them"
        raise ForwardContractError(f"{where} with strides {list(tensor.stride())}, expected {expected}")
    alignment = frame.plan.buffers[value.buffer].alignment
    if tensor.data_ptr() % alignment:
        address = f"address {tensor.data_ptr():#x}"
        raise ForwardContractError(f"{where} at {address}, expected alignment to {alignment} bytes")
    return tensor


def _lies(tensor: Tensor, row: int) -> bool:
    """Whether numbers of a row follow each other, and rows are so many elements apart."""
    if tensor.dim() < 2 or row <= tensor.shape[-1] or not tensor.numel():
        return tensor.is_contiguous()
    wanted = row
    for size, stride in reversed([*zip(tensor.shape, tensor.stride(), strict=True)][:-1]):
        if size > 1 and stride != wanted:
            return False
        wanted *= size
    return tensor.stride(-1) == 1


def _spell(dtype: str, axes: Sequence[str]) -> str:
    return f"{dtype}[{', '.join(axes)}]"
