"""rows: ops of a request that wait for no reduction: what a step begins with, and whatever stands alone."""

from __future__ import annotations

from specc.compiler.ir.core import Module, Op
from specc.compiler.kernels.writing.compose import Composed
from specc.compiler.kernels.writing.family import Cluster
from specc.compiler.kernels.writing.knobs import NONE, WARPS, Knobs, exact
from specc.compiler.kernels.writing.writer import Text


class Rows(Composed):
    """One program per request, and some that copy long rows."""

    stem = "rows"

    def scan(self, text: Text, reduction: Op, cluster: Cluster) -> str:
        """Nothing is scanned."""
        raise AssertionError(f"{reduction.opcode} is no op of a kernel without reductions")

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`."""
        return Knobs(warps=WARPS[:4]) if exact(cluster) else NONE


FAMILY = Rows()
