"""budget_expect: what requests are expected to emit at every budget, of a step that shares no rows out."""

from __future__ import annotations

from collections.abc import Iterable

from specc.compiler.ir.core import Module
from specc.compiler.ir.ops.budget import EXPECT
from specc.compiler.kernels.budget_take import columns, sizes, sizes_of, warps
from specc.compiler.kernels.writing.family import Cluster, Family, KernelArguments, Spec, only
from specc.compiler.kernels.writing.knobs import WARPS, Knobs


class BudgetExpect(Family):
    """A launch of its own where no `budget_take` reads the same estimates."""

    stem = "budget_expect"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Every op alone."""
        return [(op,) for op in module.find(EXPECT)]

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        op, arguments = only(cluster, EXPECT), KernelArguments()
        for operand in ("estimate", "rows"):
            arguments.value(f"{operand}_ptr", op[operand])
        arguments.value("expected_ptr", op.result)
        pairs = columns(op)
        return Spec(
            self.stem,
            {"expects": tuple(pairs)},
            (*sizes(module, op), *sizes_of(pairs)),
            tuple(arguments.parameters),
            num_warps=warps(module, op),
            tiles="the drafts of all requests, in every program",
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """A program for each request."""
        return batch, 1, 1

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`."""
        return Knobs(warps=WARPS)


FAMILY = BudgetExpect()
