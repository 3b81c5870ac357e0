"""budget_take: the target's rows, shared out over the requests of a batch, and what the target reads, packed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from specc.compiler.ir.core import Module, Op, tensor_type
from specc.compiler.ir.ops.budget import EXPECT, PACK, TAKE
from specc.compiler.kernels.writing.family import Cluster, Family, KernelArguments, Spec, in_order, only, power_of_two
from specc.compiler.kernels.writing.knobs import WARPS, Knobs

_PER_WARP, _MOST_WARPS = 128, 32
"""Drafts that a warp has at most, 4 to a thread, as long as there are as many warps."""


class BudgetTake(Family):
    """A launch of its own: it reads what the drafts of all requests have left.

    Every program shares the rows out by itself, for which none has to wait for another, and packs those of its request.
    The same launch says what requests would emit at other budgets.
    """

    stem = "budget_take"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Every choice, with all that is packed by it and all that is expected of the same estimates."""
        for take in module.find(TAKE):
            beside = [op for op in module.find(EXPECT) if op.operands == take.operands]
            packs = [op for op in module.users(take.out("starts")) if op.opcode == PACK]
            yield in_order(module, [take, *packs, *beside[:1]])

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        take, packs = only(cluster, TAKE), [op for op in cluster if op.opcode == PACK]
        arguments = KernelArguments()
        for operand in ("estimate", "rows"):
            arguments.value(f"{operand}_ptr", take[operand])
        for result in ("lens", "starts"):
            arguments.value(f"{result}_ptr", take.out(result))
        for number, op in enumerate(packs):
            arguments.value(f"value{number}_ptr", op["value"])
            arguments.value(f"packed{number}_ptr", op.result)
        expects = [op for op in cluster if op.opcode == EXPECT]
        for op in expects:
            arguments.value("expected_ptr", op.result)
        pairs = columns(expects[0]) if expects else {}
        most = 1 + _of_request(module, take)
        constants = (("G", module.size("G")), *sizes(module, take), ("A", most), *sizes_of(pairs))
        return Spec(
            self.stem,
            {"values": len(packs), "expects": tuple(pairs)},
            constants,
            tuple(arguments.parameters),
            num_warps=warps(module, take),
            tiles=f"{_drafts(module, take)} drafts of all requests, in every program",
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """A program for each request."""
        return batch, 1, 1

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`."""
        return Knobs(warps=WARPS)


def columns(op: Op) -> dict[str, tuple[int, int]]:
    """Return the rows and the drafts of every column of what is expected, by the column's name in a kernel."""
    pairs = [pair.split(":") for pair in str(op.attrs["shapes"]).split(", ")]
    return {f"of_{drafts}_{rows}": (int(rows), int(drafts)) for drafts, rows in pairs}


def sizes_of(pairs: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, int]]:
    """Yield the constants of columns."""
    for name, (rows, drafts) in pairs.items():
        yield f"ROWS_{name}", rows
        yield f"DRAFTS_{name}", drafts


def sizes(module: Module, op: Op) -> tuple[tuple[str, int], ...]:
    """The constants of sharing rows out: drafts of a request, lanes for requests, and bits of a count of all drafts."""
    bits = 1 + _drafts(module, op).bit_length()
    return ("S", _of_request(module, op)), ("REQUESTS", _requests(module)), ("BITS", bits)


def warps(module: Module, op: Op) -> int:
    """Warps of a program that holds the drafts of all requests."""
    return min(_MOST_WARPS, max(1, _drafts(module, op) // _PER_WARP))


def _of_request(module: Module, op: Op) -> int:
    """Drafts of a request that an op reads the estimates of."""
    return tensor_type(op["estimate"]).sizes(module.dims)[1]


def _requests(module: Module) -> int:
    return power_of_two(module.size("B"))


def _drafts(module: Module, op: Op) -> int:
    return _requests(module) * power_of_two(_of_request(module, op))


FAMILY = BudgetTake()
