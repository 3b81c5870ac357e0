"""stash: rows of values in memory, or of the last accepted node, into the pool rows of carried fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, combinations

from specc.ir.core import Module, Op, tensor_type
from specc.ir.nodes import is_external
from specc.ir.types import TensorType
from specc.kernels import copying
from specc.kernels.base import STORES, Arguments, Cluster, Family, Spec, convex, in_order, leaves, power_of_two

_TILE = 256
"""Units of one chunk: of 8 bytes that is four 16-byte loads for every thread of the one warp."""


class Stash(Family):
    """Copies alone: what carries everything that no other kernel stores where it computes it."""

    stem = "stash"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Per phase all stores, and all but those of values that other kernels make, which may store them themselves.

        The row of the last accepted node is read where all nodes are; one that no store takes from there goes to
        memory.
        """
        for ops in module.phases.values():
            stores = [op for op in ops if op.opcode in STORES]
            for others in _subsets(_makers(stores)):
                left = [op for op in stores if op.operands[1].source not in others]
                if left:
                    yield _cluster(module, left)
        for last in module.find("commit.last"):
            yield (last,)

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        shape = _Shape(module, cluster)
        block = shape.block(module)
        constants = [("A", module.size("A"))] if shape.lasts else []
        constants.append(("BLOCK", block))
        for prefix, types in (("", shape.fields(module)), ("KEPT_", shape.kept_types())):
            for key, type_ in types.items():
                row, unit = copying.row(module, type_, axes=1)
                constants += [(f"{prefix}ROW_{key}", row), (f"{prefix}UNIT_{key}", unit)]
        flags = {"copied": tuple(shape.copied), "last": tuple(shape.last), "kept": tuple(shape.kept)}
        tiles = f"chunks of {block} units, {_TILE} at most"
        return Spec(self.stem, flags, tuple(constants), tuple(_arguments(module, shape).found), (), 1, 1, tiles)

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request and chunk of a value's row."""
        shape = _Shape(module, cluster)
        return batch, sum(-(-units // shape.block(module)) for units in shape.units(module)), 1


class _Shape:
    """Where rows come from, by field: values in memory, and those of the last node; and those that stay in memory."""

    def __init__(self, module: Module, cluster: Cluster) -> None:
        self.stores = {str(op.attrs["field"]): op for op in cluster if op.opcode in STORES}
        self.lasts = {op.result: op for op in cluster if op.opcode == "commit.last"}
        values = {field: op.operands[1] for field, op in self.stores.items()}
        self.copied = {field: value for field, value in values.items() if value not in self.lasts}
        self.last = {field: self.lasts[value].operands[0] for field, value in values.items() if value in self.lasts}
        self.kept = {value.name: op for value, op in self.lasts.items() if leaves(module, value, cluster)}

    def fields(self, module: Module) -> dict[str, TensorType]:
        """Types of what is carried."""
        return {field: module.carries[field].type for field in self.copied | self.last}

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


def _arguments(module: Module, shape: _Shape) -> Arguments:
    arguments = Arguments()
    for store in list(shape.stores.values())[:1]:
        arguments.value("rows_ptr", store.operands[0])
    for last in list(shape.lasts.values())[:1]:
        arguments.value("accept_index_ptr", last.operands[1])
        arguments.value("accept_lens_ptr", last.operands[2])
    for field, value in (shape.copied | shape.last).items():
        arguments.value(f"new_{field}_ptr", value)
        arguments.relay(module, field)
    for name, last in shape.kept.items():
        arguments.value(f"nodes_{name}_ptr", last.operands[0])
        arguments.value(f"kept_{name}_ptr", last.result)
    return arguments


def _makers(stores: Sequence[Op]) -> list[Op]:
    """The ops that make what is stored and that kernels cover, apart from what copies."""
    sources = [op.operands[1].source for op in stores]
    return list(dict.fromkeys(op for op in sources if op is not None and not is_external(op) and not _is_last(op)))


def _subsets(ops: Sequence[Op]) -> Iterable[tuple[Op, ...]]:
    return chain.from_iterable(combinations(ops, count) for count in range(len(ops) + 1))


def _cluster(module: Module, stores: Sequence[Op]) -> Cluster:
    """Stores and, if nothing comes in between, the commit.last ops whose rows they store."""
    sources = [op.operands[1].source for op in stores]
    lasts = [op for op in sources if op is not None and _is_last(op)]
    cluster = in_order(module, [*lasts, *stores])
    one_path = len({op.operands[1:] for op in lasts}) <= 1
    return cluster if one_path and convex(module, cluster) else in_order(module, stores)


def _is_last(op: Op) -> bool:
    return op.opcode == "commit.last"


FAMILY = Stash()
