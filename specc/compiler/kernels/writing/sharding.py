"""What reductions over a shard of a vocabulary share: chunks, the programs of a row, and where a record goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from specc.compiler.ir.core import Module, Op, tensor_type
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.kernels.writing.compose import Composed
from specc.compiler.kernels.writing.family import Cluster, power_of_two
from specc.compiler.kernels.writing.writer import Text

_PARTIALS = 2048
"""Partial results that the last arriver combines at once, as `vocabulary` has them."""


def chunk_of(module: Module, reduction: Op) -> int:
    """Columns of a chunk."""
    return vocabulary.vocabulary(module, reduction) // int(reduction.attrs["chunks"])


def levels(count: int) -> int:
    """Levels of a balanced binary tree of so many leaves, a power of two."""
    return count.bit_length() - 1


def scanned(text: Text, reduction: Op, cluster: Cluster) -> tuple[str, str, str, tuple[int, ...]]:
    """What a scan takes: a prologue's function and operands, the logits' memory, and the partial results' sizes."""
    function, operands = vocabulary.prologue(text, reduction, cluster)
    logits = vocabulary.memory(text, reduction, cluster, str(vocabulary.vocabulary(text.module, reduction)))
    batch, *axes, _ = tensor_type(reduction["logits"]).sizes(text.module.dims)
    return function, operands, logits, (batch, *axes, int(reduction.attrs["chunks"]))


class Part(Composed):
    """A family of parts: grid (B, rows * programs)."""

    tile: ClassVar[int]
    """Most elements of a tile."""

    def keys(self, reduction: Op) -> int:
        """Keys that a program keeps of a row; none where it keeps the largest value."""
        return 0

    def programs(self, module: Module, reduction: Op) -> int:
        """Programs that share a row, a power of two: as many as there are chunks, if the last one can combine them."""
        rows = power_of_two(vocabulary.rows_of(module, reduction))
        most = min(_PARTIALS // rows, vocabulary.most_of_one(self.keys(reduction)))
        return max(1, min(int(reduction.attrs["chunks"]), most))

    def each(self, module: Module, reduction: Op) -> int:
        """Chunks of a program."""
        return int(reduction.attrs["chunks"]) // self.programs(module, reduction)

    def sizes(self, module: Module, reduction: Op) -> list[tuple[str, int]]:
        """CHUNKS, CHUNK, PROGRAMS and BLOCK; rows of a shard follow each other."""
        chunk, chunks = chunk_of(module, reduction), int(reduction.attrs["chunks"])
        block = max(256, min(self.tile, power_of_two(chunk)))
        return [("CHUNKS", chunks), ("CHUNK", chunk), ("PROGRAMS", self.programs(module, reduction)), ("BLOCK", block)]

    def grids(self, module: Module, cluster: Cluster, batches: Sequence[int]) -> list[tuple[int, int, int]]:
        """A row's programs, whatever the batch: their number decides no sum, but it is a constant of the kernel."""
        reduction = self.reduction(cluster)
        assert reduction is not None
        programs = vocabulary.rows_of(module, reduction) * self.programs(module, reduction)
        return [(batch, programs, 1) for batch in batches]

    def split_costs(self, module: Module, cluster: Cluster, batch: int) -> dict[int, int]:
        """Nothing: the order of a sum leaves no choice."""
        return {}
