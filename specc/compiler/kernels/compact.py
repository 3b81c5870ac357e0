"""compact: every value with the node axis, and the target's KV rows, brought to the accepted path."""

from __future__ import annotations

from collections.abc import Iterable

from specc.compiler.ir.core import Module, Op, Value, tensor_type
from specc.compiler.ir.nodes import is_external
from specc.compiler.kernels import copying
from specc.compiler.kernels.writing.family import (
    Cluster,
    Family,
    KernelArguments,
    Spec,
    in_order,
    kv_pool,
    maybe,
    power_of_two,
)
from specc.compiler.kernels.writing.knobs import WARPS, Knobs, tuned_split


class Compact(Family):
    """Copies alone: the accepted path's rows of values in memory, and the move of KV rows."""

    stem = "compact"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """All compactions of rows along a path, and its first move of KV rows; and each alone.

        What verification itself computes is compacted where it is computed.
        """
        values, moves = [op for op in module.find("commit.compact") if _in_rows(op)], list(module.find("kv.move"))
        paths: dict[Value, list[Op]] = {}
        for op in (*values, *moves):
            together = paths.setdefault(op["accept_index"], [])
            if op in values or maybe(together, "kv.move") is None:
                together.append(op)
        for together in paths.values():
            yield in_order(module, together)
        for op in (*values, *moves):
            yield (op,)

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        values, move = _values(cluster), maybe(cluster, "kv.move")
        arguments = KernelArguments()
        arguments.value("accept_index_ptr", (move or values[0])["accept_index"])
        rows, block = power_of_two(module.size("A")), _block(module, cluster)
        constants = [("A", module.size("A")), ("BLOCK", block)]
        if move is not None:
            arguments.value("accept_lens_ptr", move["accept_lens"])
            arguments.value("slots_ptr", move["slots"])
            arguments.kv_pointers("kv_pointers_ptr", "target")
            arguments.slot_stride("kv_stride", "target")
            constants += [("N", module.size("N")), *copying.kv_constants(kv_pool(module, "target"))]
        for number, op in enumerate(values):
            arguments.value(f"value{number}_ptr", op["x"])
            arguments.value(f"path{number}_ptr", op.result)
            row, unit = _row(module, op)
            constants += [(f"ROW{number}", row), (f"UNIT{number}", unit)]
        flags = {"move": move is not None, "values": len(values)}
        tiles = f"{rows} rows of {block} units, {copying.TILE} units at most"
        return Spec(self.stem, flags, tuple(constants), tuple(arguments.parameters), tiles=tiles)

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """A program per request and chunk of a value's columns; the rest share the chunks of all KV buffers."""
        chunks, moved = _chunks(module, cluster)
        shared = tuned_split(module, cluster[0], batch) or copying.programs(moved, batch)
        return batch, chunks + shared, 1

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`: the chunks of KV buffers are shared by any number of programs."""
        chunks, moved = _chunks(module, cluster)
        return Knobs(warps=WARPS, split=moved, fixed=chunks)


def _in_rows(op: Op) -> bool:
    """Whether a compaction is of rows in memory, not of a number per node, which is compacted where it is computed."""
    value = op["x"]
    return len(tensor_type(value).shape) > 2 or value.source is None or is_external(value.source)


def _values(cluster: Cluster) -> list[Op]:
    return [op for op in cluster if op.opcode == "commit.compact"]


def _row(module: Module, op: Op) -> tuple[int, int]:
    """Bytes of one node's row, and of the units it is copied in."""
    return copying.row(module, tensor_type(op["x"]), axes=2)


def _units(module: Module, cluster: Cluster) -> list[int]:
    """Units of one row of every value, then of a KV buffer if those are moved."""
    units = [row // unit for row, unit in (_row(module, op) for op in _values(cluster))]
    if maybe(cluster, "kv.move") is None:
        return units
    pool = kv_pool(module, "target")
    return [*units, pool.row_bytes // copying.kv_unit(pool)]


def _block(module: Module, cluster: Cluster) -> int:
    """Units of a row in one tile: all A rows of a tile fit in the registers of a program."""
    most = copying.TILE // power_of_two(module.size("A"))
    return max(1, min(most, power_of_two(max(_units(module, cluster)))))


def _chunks(module: Module, cluster: Cluster) -> tuple[int, int]:
    """Chunks of columns of all values together, and of all KV buffers together."""
    block = _block(module, cluster)
    chunks = [-(-units // block) for units in _units(module, cluster)]
    if maybe(cluster, "kv.move") is None:
        return sum(chunks), 0
    pool = kv_pool(module, "target")
    return sum(chunks[:-1]), chunks[-1] * pool.layers * pool.buffers


FAMILY = Compact()
