"""head: products of hidden rows with the weights of a head, and what is asked of them, a part of the vocabulary each.

The programs of a launch share the vocabulary, and each computes all rows with its part of it: the weights are read
once, whatever the batch, up to as many rows as a tile has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from specc.ir.core import Module, Op, tensor_type
from specc.ir.types import DTYPES
from specc.kernels.writing.family import Arguments, Cluster, Family, Spec, power_of_two
from specc.runtime.plan.plan import PART_AXIS

_OPS = ("head.logits", "head.argmax_part", "head.topk_part")
_ENTRIES = 128
"""Entries of a tile: the rows that four warps give to a matrix instruction."""
_ROW_BYTES = 128
"""Bytes of an entry's weights in a tile: what a warp loads of a row at once, and a memory transaction has."""
_FEWEST_ROWS, _MOST_ROWS = 16, 64
"""Rows of a tile: as many as a matrix instruction takes at least; more would leave accumulators no registers."""
_STAGES = 4
"""Tiles on their way: bytes in flight decide how fast weights are read."""


class Head(Family):
    """Logits that no forward computes: stored, or reduced to records of the parts of the vocabulary."""

    stem = "head"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Every op that multiplies by a head."""
        for op in module.find(*_OPS):
            yield (op,)

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        (op,) = cluster
        tile, arguments = _Tile.of(module, op), Arguments()
        arguments.value("hidden_ptr", op["hidden"])
        arguments.input("weight_ptr", op["weight"])
        scale = op.get("scale")
        if scale is not None:
            arguments.input("scale_ptr", scale)
        arguments.value("result_ptr", op.result)
        entries, width = tensor_type(op["weight"]).sizes(module.dims)
        parts = module.size(PART_AXIS)
        constants = [("ROWS", rows_of(module, op)), ("V", entries), ("W", width)]
        constants += [("PARTS", parts), ("PART", -(-entries // parts)), ("WORDS", int(op.attrs.get("words", 0)))]
        constants += [("BN", _ENTRIES), ("BM", tile.rows), ("BK", tile.weights)]
        flags = {"scaled": scale is not None}
        flags |= {kind: op.opcode == f"head.{kind}_part" for kind in ("argmax", "topk")}
        tiles = f"{_ENTRIES} entries x {tile.weights} weights, {tile.bytes} bytes, and {tile.rows} rows"
        return Spec(
            self.stem,
            flags,
            tuple(constants),
            tuple(arguments.parameters),
            num_warps=4 if tile.rows <= 32 else 8,
            num_stages=_STAGES,
            tiles=tiles,
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """A program for each part; the first axis is that of requests, so there may be a few that have none."""
        return batch, -(-module.size(PART_AXIS) // batch), 1


@dataclass(frozen=True)
class _Tile:
    """Sizes of a tile: rows, an entry's weights, and bytes of all weights."""

    rows: int
    weights: int
    bytes: int

    @classmethod
    def of(cls, module: Module, op: Op) -> _Tile:
        """As many rows as the largest batch has, of those that a tile may have."""
        rows = power_of_two(module.size("B") * rows_of(module, op))
        width = DTYPES[tensor_type(op["weight"]).dtype].bytes
        return cls(max(_FEWEST_ROWS, min(_MOST_ROWS, rows)), _ROW_BYTES // width, _ENTRIES * _ROW_BYTES)


def rows_of(module: Module, op: Op) -> int:
    """Hidden rows of one request."""
    return prod(tensor_type(op["hidden"]).sizes(module.dims)[1:-1])


FAMILY = Head()
