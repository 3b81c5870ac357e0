"""budget_rows: packed hidden rows, brought to the request that they are of: its first ones, or those along a path."""

from __future__ import annotations

from collections.abc import Iterable

from specc.compiler.ir.core import Module, Op, tensor_type
from specc.compiler.ir.ops.budget import UNPACK
from specc.compiler.kernels import copying
from specc.compiler.kernels.writing.family import Cluster, Family, KernelArguments, Spec, power_of_two
from specc.compiler.kernels.writing.knobs import WARPS, Knobs


class BudgetRows(Family):
    """Copies alone; rows of logits are read where they are."""

    stem = "budget_rows"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Every op alone."""
        return [(op,) for op in module.find(UNPACK)]

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        (op,) = cluster
        arguments = KernelArguments()
        along = "path" in op.named
        for operand in ("packed", "starts", "path") if along else ("packed", "lens", "starts"):
            arguments.value(f"{operand}_ptr", op[operand])
        arguments.value("x_ptr", op.result)
        row, unit, block = _tile(module, op)
        columns = _columns(module, op)
        constants = (("A", columns), ("ROW", row), ("UNIT", unit), ("BLOCK", block))
        tiles = f"{power_of_two(columns)} rows of {block} units, {copying.TILE} units at most"
        constants = (*constants, ("N", module.size("N"))) if along else constants
        return Spec(self.stem, {"along": along}, constants, tuple(arguments.parameters), tiles=tiles)

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """A program per request and chunk of columns."""
        row, unit, block = _tile(module, cluster[0])
        return batch, -(-(row // unit) // block), 1

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`."""
        return Knobs(warps=WARPS)


def _columns(module: Module, op: Op) -> int:
    """Rows of a request."""
    return tensor_type(op.result).sizes(module.dims)[1]


def _tile(module: Module, op: Op) -> tuple[int, int, int]:
    """Bytes of a row, of the units it is copied in, and units of a row in one tile."""
    row, unit = copying.row(module, tensor_type(op["packed"]), axes=2)
    most = max(1, copying.TILE // power_of_two(_columns(module, op)))
    return row, unit, max(1, min(most, power_of_two(row // unit)))


FAMILY = BudgetRows()
