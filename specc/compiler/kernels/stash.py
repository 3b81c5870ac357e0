"""stash: rows of the last accepted node, into memory and into the pool rows of carried fields."""

from __future__ import annotations

from collections.abc import Iterable

from specc.compiler.ir.core import Module, Op, Value, tensor_type
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.types import TensorType
from specc.compiler.kernels import copying
from specc.compiler.kernels.writing.blocks import fits_registers
from specc.compiler.kernels.writing.family import Cluster, Family, KernelArguments, Spec, in_order, leaves, power_of_two
from specc.compiler.kernels.writing.knobs import WARPS, Knobs

_TILE = 256
"""Units of one chunk: of 8 bytes that is four 16-byte loads for every thread of the one warp."""


class Stash(Family):
    """Copies alone, of rows too long to be computed with."""

    stem = "stash"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Those of one path and phase, with the stores that keep them; and each alone."""
        paths: dict[tuple[str, Value, Value], list[Op]] = {}
        for last in module.find("commit.last"):
            if len(tensor_type(last["x"]).shape) > 2 or not fits_registers(module, last["x"]):
                paths.setdefault((last.phase, last["accept_index"], last["accept_lens"]), []).append(last)
                yield (last,)
        for (phase, _, _), lasts in paths.items():
            users = [user for last in lasts for user in module.users(last.result)]
            yield in_order(module, [*lasts, *(op for op in users if op.has(Trait.STORES) and op.phase == phase)])

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        shape = _StashSizes(module, cluster)
        block = shape.block(module)
        constants = [("A", module.size("A")), ("BLOCK", block)]
        for prefix, types in (("", shape.fields(module)), ("KEPT_", shape.kept_types())):
            for key, type_ in types.items():
                row, unit = copying.row(module, type_, axes=1)
                constants += [(f"{prefix}ROW_{key}", row), (f"{prefix}UNIT_{key}", unit)]
        flags = {"last": tuple(shape.last), "kept": tuple(shape.kept)}
        tiles = f"chunks of {block} units, {_TILE} at most"
        return Spec(
            self.stem, flags, tuple(constants), tuple(_arguments(module, shape).parameters), num_warps=1, tiles=tiles
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request and chunk of a value's row."""
        shape = _StashSizes(module, cluster)
        return batch, sum(-(-units // shape.block(module)) for units in shape.units(module)), 1

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`."""
        return Knobs(warps=WARPS[:3])


class _StashSizes:
    """Where rows come from, by field; and those that stay in memory, by name."""

    def __init__(self, module: Module, cluster: Cluster) -> None:
        self.stores = {str(op.attrs["field"]): op for op in cluster if op.has(Trait.STORES)}
        self.lasts = {op.result: op for op in cluster if op.opcode == "commit.last"}
        self.last = {field: self.lasts[op["value"]]["x"] for field, op in self.stores.items()}
        self.kept = {value.name: op for value, op in self.lasts.items() if leaves(module, value, cluster)}

    def fields(self, module: Module) -> dict[str, TensorType]:
        """Types of what is carried."""
        return {field: module.carries[field].type for field in self.last}

    def kept_types(self) -> dict[str, TensorType]:
        """Types of rows of the last node that go to memory."""
        return {name: tensor_type(op.result) for name, op in self.kept.items()}

    def units(self, module: Module) -> list[int]:
        """Units of one row of everything that is written."""
        types = [*self.fields(module).values(), *self.kept_types().values()]
        return [row // unit for row, unit in (copying.row(module, type_, axes=1) for type_ in types)]

    def block(self, module: Module) -> int:
        """Units of one chunk: the longest row, if it fits into the tile."""
        return min(_TILE, power_of_two(max(self.units(module))))


def _arguments(module: Module, shape: _StashSizes) -> KernelArguments:
    arguments = KernelArguments()
    for store in list(shape.stores.values())[:1]:
        arguments.value("rows_ptr", store["rows"])
    for last in list(shape.lasts.values())[:1]:
        arguments.value("accept_index_ptr", last["accept_index"])
        arguments.value("accept_lens_ptr", last["accept_lens"])
    for field, value in shape.last.items():
        arguments.value(f"new_{field}_ptr", value)
        arguments.relay(module, field)
    for name, last in shape.kept.items():
        arguments.value(f"nodes_{name}_ptr", last["x"])
        arguments.value(f"kept_{name}_ptr", last.result)
    return arguments


FAMILY = Stash()
