"""budget_take: the target's rows, shared out over the requests of a batch, and what the target reads, packed."""

from __future__ import annotations

from collections.abc import Iterable

from specc.compiler.ir.core import Module
from specc.compiler.ir.ops.budget import PACK, TAKE
from specc.compiler.kernels.writing.family import Cluster, Family, KernelArguments, Spec, only, power_of_two
from specc.compiler.kernels.writing.knobs import WARPS, Knobs

_PER_WARP = 512
"""Drafts that a warp has at most, 16 to a thread, as long as there are sixteen."""


class BudgetTake(Family):
    """A launch of its own: it reads what the drafts of all requests have left.

    Every program shares the rows out by itself, for which none has to wait for another, and packs those of its request.
    """

    stem = "budget_take"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Every choice, with all that is packed by it."""
        for take in module.find(TAKE):
            yield take, *(op for op in module.users(take.out("starts")) if op.opcode == PACK)

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        take, packs = only(cluster, TAKE), cluster[1:]
        arguments = KernelArguments()
        for operand in ("estimate", "rows"):
            arguments.value(f"{operand}_ptr", take[operand])
        for result in ("lens", "starts"):
            arguments.value(f"{result}_ptr", take.out(result))
        for number, op in enumerate(packs):
            arguments.value(f"value{number}_ptr", op["value"])
            arguments.value(f"packed{number}_ptr", op.result)
        requests = power_of_two(module.size("B"))
        drafts = requests * power_of_two(module.size("S"))
        sizes = ((axis, module.size(axis)) for axis in ("G", "S", "A"))
        constants = *sizes, ("REQUESTS", requests), ("BITS", 1 + drafts.bit_length())
        return Spec(
            self.stem,
            {"values": len(packs)},
            constants,
            tuple(arguments.parameters),
            num_warps=min(16, max(1, drafts // _PER_WARP)),
            tiles=f"{drafts} drafts of all requests, in every program",
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """A program for each request."""
        return batch, 1, 1

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`."""
        return Knobs(warps=WARPS)


FAMILY = BudgetTake()
