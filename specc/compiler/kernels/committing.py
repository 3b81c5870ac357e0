"""What the families that commit states share: arguments, layers and nodes."""

from __future__ import annotations

from specc.compiler.ir.core import Module, Op
from specc.compiler.ir.types import StateType
from specc.compiler.kernels.writing.family import KernelArguments, Parameter
from specc.runtime.plan.recurrent.state_tables import STATE_POINTERS


def commit_arguments(op: Op) -> tuple[Parameter, ...]:
    """The path of each request, where its state is and where a copy goes, and the table of states."""
    arguments = KernelArguments()
    arguments.value("accept_index_ptr", op["accept_index"])
    arguments.value("accept_lens_ptr", op["accept_lens"])
    arguments.value("rows_ptr", op["rows"])
    arguments.input("state_rows_ptr", op["state_rows"])
    arguments.value("seq_lens_ptr", op["seq_lens"])
    arguments.input("kept_rows_ptr", op["kept_rows"])
    arguments.input("kept_interval_ptr", op["kept_interval"])
    arguments.buffer("places_ptr", "i64", STATE_POINTERS)
    return tuple(arguments.parameters)


def layers(op: Op) -> int:
    """Layers whose states it commits."""
    return max(1, int(op.attrs["layers"]))


def nodes(module: Module, op: Op) -> int:
    """Nodes of a request of which there is something to commit."""
    (along,) = (type_.along for value in op.operands if isinstance(type_ := value.type, StateType))
    return module.size(along)
