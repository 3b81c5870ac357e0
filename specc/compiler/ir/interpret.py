"""Running a module on tensors: every op by its reference semantics, forwards by functions of the caller.

The oracle for passes: a pass preserves semantics iff the module before and after it gives the same outputs, carried
values and calls of forwards. torch is imported when a module is run, not before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from specc.compiler.ir.core import Module, Op, Value, is_state
from specc.compiler.ir.nodes import is_external
from specc.compiler.ir.ops import OPS

if TYPE_CHECKING:
    from torch import Tensor


class Forward(Protocol):
    """One of the engine's forwards, e.g. ``model.draft``."""

    def __call__(self, attrs: Mapping[str, Any], operands: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """``operands`` by name -> ``logits`` and, if the op has that result, ``hidden``."""
        ...


def interpret(
    module: Module,
    entry: str,
    inputs: Mapping[str, Tensor],
    pools: Mapping[str, Tensor],
    forwards: Mapping[str, Forward],
    batch: int,
    kv: Mapping[str, Sequence[Tensor]] | None = None,
) -> dict[str, Tensor]:
    """Run one entry of a module.

    Args:
        module: a typed module, before or after any pass.
        entry: ``prefill`` or ``step``.
        inputs: tensors of the module's inputs, by name.
        pools: carried values as pool rows [P, ...], by field; read, and changed in place.
        forwards: functions by opcode.
        batch: rows of this batch (the size of axis B).
        kv: KV buffers by owner, changed in place; left out where they do not matter.

    Returns:
        Every value the entry computed, by SSA name.

    """
    from specc.runtime.semantics import reference

    semantics = reference.OPS | {name: op.reference for name, op in OPS.items() if op.reference is not None}
    dims = {dim.name: dim.size for dim in module.dims.values() if dim.size is not None} | {"B": batch}
    values: dict[Value, Tensor] = {v: inputs[name] for name, v in module.inputs.items() if name in inputs}
    for op in module.ops(entry):
        operands = [values[value] for value in op.operands if not is_state(value)]
        if is_external(op):
            results = _call(op, operands, forwards)
        else:
            results = reference.evaluate(op.opcode, tuple(operands), op.attrs, dims, pools, kv, semantics)
        tensors = [value for value in op.results if not is_state(value)]
        values |= dict(zip(tensors, results, strict=True))
    return {value.name: tensor for value, tensor in values.items()}


def _call(op: Op, operands: list[Tensor], forwards: Mapping[str, Forward]) -> list[Tensor]:
    tensors = [name for name, value in op.named.items() if not is_state(value)]
    answer = forwards[op.opcode](op.attrs, dict(zip(tensors, operands, strict=True)))
    return [answer[name] for name, value in op.named_results.items() if not is_state(value)]
