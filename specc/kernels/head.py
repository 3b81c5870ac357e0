"""head: products of hidden rows with the weights of a head, and what is asked of them, a part of the vocabulary each.

The programs of a launch share the vocabulary, and each computes all rows with its part of it: the weights are read
once, whatever the batch, up to as many rows as a tile has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from specc.ir.core import Module, Op, tensor_type
from specc.ir.ops.head import LOGITS, PARTS
from specc.ir.types import DTYPES
from specc.kernels.writing.family import Arguments, Cluster, Family, Spec, power_of_two

_ENTRIES, _ROW_BYTES = 128, 128
"""Entries of a tile, and bytes of a hidden row in it, which say how many weights of an entry are multiplied at once. Of
8-bit weights more at once would be loaded through registers, so that none are on their way meanwhile."""
_MOST_PARTS, _LEAST_ENTRIES = 128, 16
"""As many parts as a large GPU has multiprocessors, of those that are powers of two; the least entries of one."""
_FEWEST_ROWS, _MOST_ROWS, _MOST_RANKED = 16, 64, 32
"""Rows of a tile: as many as a matrix instruction takes at least; at most as registers have room for, in which a top-k
holds keys of 64 bits besides."""
_STAGES, _STAGED_BYTES = 6, 96 << 10
"""Most tiles on their way, and most bytes of them: these decide how fast weights are read."""


class Head(Family):
    """Logits that no forward computes: stored, or reduced to records of the parts of the vocabulary."""

    stem = "head"
    spills = 128  # on some architectures the assembler keeps to 96 or 128 registers, and spills what no loop reads

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Every op that multiplies by a head."""
        for op in module.find(LOGITS, *PARTS.values()):
            yield (op,)

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        (op,) = cluster
        weight, scale = op["weight"], op.get("scale")
        tile, arguments = _Tile.of(module, op), Arguments()
        arguments.value("states_ptr", op["states"])
        arguments.input("weight_ptr", weight)
        if scale is not None:
            arguments.input("scale_ptr", scale)
        arguments.value("result_ptr", op.result)
        entries, width = tensor_type(weight).sizes(module.dims)
        parts = _parts(module, op)
        constants = [("ROWS", rows_of(module, op)), ("V", entries), ("W", width)]
        constants += [("PARTS", parts), ("PART", -(-entries // parts)), ("WORDS", _words(op))]
        constants += [("BN", _ENTRIES), ("BM", tile.rows), ("BK", tile.weights)]
        tiles = f"{_ENTRIES} entries x {tile.weights} weights, {tile.bytes} bytes, for {tile.rows} rows"
        return Spec(
            self.stem,
            {"scaled": scale is not None},
            tuple(constants),
            tuple(arguments.parameters),
            num_warps=4 if tile.rows == _FEWEST_ROWS else 8,
            num_stages=tile.stages,
            tiles=tiles,
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """A program for each part; the first axis is that of requests, so there may be a few that have none."""
        return batch, -(-_parts(module, cluster[0]) // batch), 1


@dataclass(frozen=True)
class _Tile:
    """A tile: rows, weights of each entry, bytes of all weights, and how many tiles are on their way."""

    rows: int
    weights: int
    bytes: int
    stages: int

    @classmethod
    def of(cls, module: Module, op: Op) -> _Tile:
        """As many rows as the largest batch has, of those that a tile may have."""
        most = _MOST_RANKED if _words(op) > 1 else _MOST_ROWS
        rows = max(_FEWEST_ROWS, min(most, power_of_two(module.size("B") * rows_of(module, op))))
        of_row, of_weight = (DTYPES[tensor_type(value).dtype].bytes for value in (op["states"], op["weight"]))
        weights = _ROW_BYTES // of_row
        staged = weights * (_ENTRIES * of_weight + rows * of_row)
        return cls(rows, weights, _ENTRIES * weights * of_weight, min(_STAGES, _STAGED_BYTES // staged))


def parts_of(entries: int) -> int:
    """Parts that a vocabulary is cut into, a power of two: no smaller ones than a matrix instruction takes."""
    return min(_MOST_PARTS, 1 << (max(entries // _LEAST_ENTRIES, 1).bit_length() - 1))


def _words(op: Op) -> int:
    """Words of a record: one of an argmax, K + 1 of a top-k; none where logits are stored."""
    return int(op.attrs.get("words", 0))


def _parts(module: Module, op: Op) -> int:
    """Parts that an op's programs share: as many as its records say, of logits as of any vocabulary of that length."""
    entries, _ = tensor_type(op["weight"]).sizes(module.dims)
    return parts_of(entries) if op.opcode == LOGITS else tensor_type(op.result).sizes(module.dims)[0]


def rows_of(module: Module, op: Op) -> int:
    """Hidden rows of one request."""
    return prod(tensor_type(op["states"]).sizes(module.dims)[1:-1])


FAMILY = Head()
