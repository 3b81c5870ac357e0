"""What of a value one program holds in registers, and which rows are so long that they are copied in chunks."""

from __future__ import annotations

from math import prod

from specc.compiler.ir.core import Module, Op, Value, is_state, tensor_type
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.types import TensorType
from specc.compiler.kernels.writing.family import NARROW, Cluster, power_of_two, row_elements

MOST_ELEMENTS = 4096
"""Most elements of a block: 32 for each of 128 threads."""


def block_shape(module: Module, type_: TensorType) -> tuple[int, ...]:
    """Elements along every axis but the batch."""
    sizes = type_.sizes(module.dims, unbounded=0)
    return tuple(size for axis, size in zip(type_.shape, sizes, strict=True) if axis != "B")


def fits_registers(module: Module, value: Value) -> bool:
    """Whether one program can hold what a value has of a request: at most two axes, and one before the batch."""
    type_ = tensor_type(value)
    if "B" not in type_.shape[:2]:
        return False
    shape = block_shape(module, type_)
    return len(shape) <= 2 and 0 not in shape and prod(map(power_of_two, shape)) <= MOST_ELEMENTS


def all_fit(module: Module, op: Op) -> bool:
    """Whether one program can hold all that an op reads and gives of a request."""
    values = [value for value in (*op.operands, *op.results) if not is_state(value)]
    return all(fits_registers(module, value) for value in values)


def is_gather(op: Op) -> bool:
    """Whether an op moves rows of nodes that another op of its launch chooses."""
    return op.opcode == "tree.gather"


def moved(module: Module, op: Op) -> int:
    """Elements of one of the rows that an op moves."""
    if "field" in op.attrs:
        return row_elements(module, str(op.attrs["field"]))
    axes = 2 if is_gather(op) else 1
    return prod(tensor_type(op["x"]).sizes(module.dims)[axes:])


def is_long(module: Module, op: Op) -> bool:
    """Whether an op moves rows of a request that are copied in chunks: those of more than `NARROW` elements."""
    if is_gather(op):
        return len(tensor_type(op["x"]).shape) > 2
    return op.has(Trait.COPIES) and (moved(module, op) > NARROW or not all_fit(module, op))


def is_computed(module: Module, op: Op, cluster: Cluster) -> bool:
    """Whether a long load is a block after all, because another op of the cluster computes with it."""
    if not op.has(Trait.LOADS) or not all_fit(module, op):
        return False
    return any(user in cluster and not is_long(module, user) for user in module.users(op.result))


def replaced(module: Module, value: Value) -> Value | None:
    """The operand whose memory a value takes, None without one: what is handed out keeps its own."""
    victim = value.source.overwritten if value.source is not None else None
    return None if victim in module.outputs.values() else victim
