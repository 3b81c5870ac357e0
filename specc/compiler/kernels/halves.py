"""halves: hidden rows as two rows of 8 bits each, for a head whose weights have 8 bits."""

from __future__ import annotations

from collections.abc import Iterable

from specc.compiler.ir.core import Module, tensor_type
from specc.compiler.ir.ops.head import HALVES
from specc.compiler.kernels.head import rows_of
from specc.compiler.kernels.writing.family import Cluster, Family, KernelArguments, Spec, only, power_of_two
from specc.compiler.kernels.writing.knobs import WARPS, Knobs

_PER_WARP = 1024
"""Numbers of a row that a warp has at most, 32 to a thread, as long as there are eight."""


class Halves(Family):
    """A launch of its own: every program of the head reads what it writes."""

    stem = "halves"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Every op alone."""
        return [(op,) for op in module.find(HALVES)]

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        op = only(cluster, HALVES)
        arguments = KernelArguments()
        arguments.value("states_ptr", op["states"])
        for result in ("high", "low", "worth"):
            arguments.value(f"{result}_ptr", op.out(result))
        *_, width = tensor_type(op["states"]).sizes(module.dims)
        block = power_of_two(width)
        return Spec(
            self.stem,
            {},
            (("W", width), ("BLOCK", block)),
            tuple(arguments.parameters),
            num_warps=min(8, max(1, block // _PER_WARP)),
            tiles=f"a row of {width} numbers",
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """A program for each row."""
        return batch, rows_of(module, cluster[0]), 1

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`."""
        return Knobs(warps=WARPS)


FAMILY = Halves()
