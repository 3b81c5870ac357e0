"""compact: every value with the node axis, and the target's KV rows, brought to the accepted path."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, Op, tensor_type
from specc.kernels import copying
from specc.kernels.base import Arguments, Cluster, Family, Spec, in_order, kv_pool, maybe, power_of_two

VALUES = 4
"""Values of one launch: the template has that many segments. Further values take further launches."""

_OTHERS = frozenset({"verify.greedy", "vocab.logprob"})


class Compact(Family):
    """Copies alone: the accepted path's rows of values in memory, and the move of KV rows."""

    stem = "compact"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """All compactions of what forwards return, four to a launch; the first launch moves KV rows as well.

        What verification itself computes is compacted where it is computed.
        """
        values = [op for op in module.find("commit.compact") if not _computed_by_verify(op)]
        moves = module.find("kv.move")
        for first in range(0, max(len(values), 1), VALUES):
            cluster = [*values[first : first + VALUES], *(moves if first == 0 else [])]
            if cluster:
                yield in_order(module, cluster)

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        values, move = _values(cluster), maybe(cluster, "kv.move")
        arguments = Arguments()
        arguments.value("accept_index_ptr", (move or values[0]).operands[1])
        rows, block = power_of_two(module.size("A")), _block(module, cluster)
        constants = [("A", module.size("A")), ("BLOCK", block)]
        if move is not None:
            arguments.value("accept_lens_ptr", move.operands[2])
            arguments.value("slots_ptr", move.operands[0])
            arguments.kv_pointers("kv_pointers_ptr", "target")
            arguments.slot_stride("kv_stride", "target")
            constants += [("N", module.size("N")), *copying.kv_constants(kv_pool(module, "target"))]
        for number, op in enumerate(values):
            arguments.value(f"value{number}_ptr", op.operands[0])
            arguments.value(f"path{number}_ptr", op.result)
            row, unit = _row(module, op)
            constants += [(f"ROW{number}", row), (f"UNIT{number}", unit)]
        flags = {"move": move is not None} | {f"value{number}": number < len(values) for number in range(VALUES)}
        tiles = f"{rows} rows of {block} units, {copying.TILE} units at most"
        return Spec(self.stem, flags, tuple(constants), tuple(arguments.found), tiles=tiles)

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """A program per request and chunk of a value's columns; the rest share the chunks of all KV buffers."""
        chunks, moved = _chunks(module, cluster)
        return batch, chunks + copying.programs(moved, batch), 1


def _computed_by_verify(op: Op) -> bool:
    source = op.operands[0].source
    return source is not None and source.opcode in _OTHERS


def _values(cluster: Cluster) -> list[Op]:
    return [op for op in cluster if op.opcode == "commit.compact"]


def _row(module: Module, op: Op) -> tuple[int, int]:
    """Bytes of one node's row, and of the units it is copied in."""
    return copying.row(module, tensor_type(op.operands[0]), axes=2)


def _units(module: Module, cluster: Cluster) -> list[int]:
    """Units of one row of every value, then of a KV buffer if those are moved."""
    units = [row // unit for row, unit in (_row(module, op) for op in _values(cluster))]
    pool = kv_pool(module, "target")
    return units + ([pool.row_bytes // copying.kv_unit(pool)] if maybe(cluster, "kv.move") else [])


def _block(module: Module, cluster: Cluster) -> int:
    """Units of a row in one tile: all A rows of a tile fit in the registers of a program."""
    most = copying.TILE // power_of_two(module.size("A"))
    return max(1, min(most, power_of_two(max(_units(module, cluster)))))


def _chunks(module: Module, cluster: Cluster) -> tuple[int, int]:
    """Chunks of columns of all values together, and of all KV buffers together."""
    block, pool = _block(module, cluster), kv_pool(module, "target")
    chunks = [-(-units // block) for units in _units(module, cluster)]
    buffers = chunks[len(_values(cluster)) :]
    return sum(chunks) - sum(buffers), sum(buffers) * pool.layers * pool.buffers


FAMILY = Compact()
