"""specialize-buckets: the launch grid of every kernel in every captured batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specc.compiler.ir.core import Module
from specc.compiler.ir.declarations import Grid, Kernel, Options
from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.writing.family import cluster_of
from specc.compiler.kernels.writing.vocabulary import least
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

MAX_PROGRAMS = 65535
"""Most programs of a grid along its second and third axis (CUDA C++ Programming Guide, technical specifications)."""


@dataclass(frozen=True)
class SpecializeBuckets(Pass):
    """One machine code serves all buckets; the grid is what differs."""

    name = "specialize-buckets"
    requires = frozenset({"clustered"})
    establishes = frozenset({"bucketed"})
    until = "bucketed"

    @classmethod
    def violations(cls, module: Module) -> list[str]:
        """Kernels without a grid."""
        options = module.decl(Options)
        grids = {(grid.kernel, grid.bucket) for grid in module.decls_of(Grid)}
        wanted = {(kernel.name, bucket) for kernel in module.decls_of(Kernel) for bucket in options.buckets}
        return [f"kernel {kernel} has no grid for bucket {bucket}" for kernel, bucket in sorted(wanted - grids)]

    def run(self, module: Module, ctx: Context) -> None:
        """Declare the grid of every kernel at every bucket."""
        options = module.decl(Options)
        bound = module.size("B")
        if options.buckets[-1] != bound:
            message = f"the largest bucket is {options.buckets[-1]}, but batches have up to {bound} rows"
            raise DiagnosticError(Diagnostic("config/buckets", message))
        for kernel in module.decls_of(Kernel):
            cluster = cluster_of(module, kernel.name)
            grids = FAMILIES[kernel.family].grids(module, cluster, options.buckets)
            for bucket, grid in zip(options.buckets, grids, strict=True):
                module.decls.append(Grid(f"{kernel.name}.{bucket}", kernel.name, bucket, grid))
            self._refuse_large(kernel, grids, ctx)
            programs = f"{kernel.name}: programs per bucket {[x * y * z for x, y, z in grids]}"
            costs = FAMILIES[kernel.family].split_costs(module, cluster, bound)
            choice = _split(kernel.name, bound, costs) if len(costs) > 1 else None
            self.remark(ctx, f"{programs}: {_per_request(grids)}", ctx.at("buckets"), choice)

    def _refuse_large(self, kernel: Kernel, grids: Sequence[tuple[int, int, int]], ctx: Context) -> None:
        """Refuse a kernel with more programs per request than a grid can have."""
        most = max(size for grid in grids for size in grid[1:])
        if most > MAX_PROGRAMS:
            message = f"{kernel.name} would launch {most} programs per request, and a grid has at most {MAX_PROGRAMS}"
            hint = (
                "choose smaller sizes: the rows of hidden states and of keys and values that it copies set the number"
            )
            raise DiagnosticError(Diagnostic("kernel/resources", message, ctx.at("buckets"), hint))


def _split(kernel: str, batch: int, costs: Mapping[int, int]) -> Choice:
    """How many programs share a row, and what others would take: one, half as many, twice as many, the most."""
    count = least(costs)
    others = sorted({1, count // 2, 2 * count, max(costs)} & costs.keys() - {count})
    rest = tuple(Rejected(_shared(other), "by the same estimate", costs[other]) for other in others)
    why = f"the least time at {batch} requests, by an estimate"
    return Choice(kernel, _shared(count), why, rest, costs[count], "tiles")


def _shared(count: int) -> str:
    return f"{count} programs share a row" if count > 1 else "a program has a row"


def _per_request(grids: Sequence[tuple[int, int, int]]) -> str:
    counts = [y * z for _, y, z in grids]
    if len(set(counts)) == 1:
        return f"{counts[0]} per request"
    return f"{max(counts)} to {min(counts)} per request, fewer where the requests alone occupy the GPU"
