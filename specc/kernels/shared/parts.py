"""What reductions over a shard of a vocabulary share: chunks, the programs of a row, and where a record goes."""

from __future__ import annotations

from specc.ir.core import Module, Op, tensor_type
from specc.kernels.shared import vocabulary
from specc.kernels.shared.base import Cluster, power_of_two
from specc.kernels.shared.compose import Composed
from specc.kernels.shared.text import Text

_PARTIALS = 2048
"""Partial results that the last arriver combines at once, as `vocabulary` has them."""
_TILES = {"vocab.argmax_part": 2048, "vocab.topk_part": 1024}
"""Most elements of a tile; a top-k, whose lanes form no groups, keeps more of each."""


def chunk_of(module: Module, reduction: Op) -> int:
    """Columns of a chunk."""
    return vocabulary.vocabulary(module, reduction) // int(reduction.attrs["chunks"])


def programs_of(module: Module, reduction: Op) -> int:
    """Programs that share a row, a power of two: as many as there are chunks, if the last one can combine them."""
    keys = module.size("K") if reduction.opcode == "vocab.topk_part" else 0
    rows = power_of_two(vocabulary.rows_of(module, reduction))
    most = min(_PARTIALS // rows, vocabulary.most_of_one(keys))
    return max(1, min(int(reduction.attrs["chunks"]), most))


def sizes(module: Module, reduction: Op) -> list[tuple[str, int]]:
    """CHUNKS, CHUNK, PROGRAMS and BLOCK; rows of a shard follow each other."""
    chunk = chunk_of(module, reduction)
    block = max(256, min(_TILES[reduction.opcode], power_of_two(chunk)))
    chunks = int(reduction.attrs["chunks"])
    return [("CHUNKS", chunks), ("CHUNK", chunk), ("PROGRAMS", programs_of(module, reduction)), ("BLOCK", block)]


def levels(count: int) -> int:
    """Levels of a balanced binary tree of so many leaves, a power of two."""
    return count.bit_length() - 1


def scanned(text: Text, reduction: Op, cluster: Cluster) -> tuple[str, str, str, tuple[int, ...]]:
    """What a scan takes: a prologue's function and operands, the logits' memory, and the partial results' sizes."""
    function, operands = vocabulary.prologue(text, reduction, cluster)
    logits = vocabulary.memory(text, reduction, cluster, str(vocabulary.vocabulary(text.module, reduction)))
    batch, *axes, _ = tensor_type(reduction["logits"]).sizes(text.module.dims)
    return function, operands, logits, (batch, *axes, int(reduction.attrs["chunks"]))


def each(module: Module, reduction: Op) -> int:
    """Chunks of a program."""
    return int(reduction.attrs["chunks"]) // programs_of(module, reduction)


class Part(Composed):
    """A family of parts: grid (B, rows * programs)."""

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """A row's programs, whatever the batch: their number decides no sum, but it is a constant of the kernel."""
        reduction = self.reduction(cluster)
        assert reduction is not None
        return batch, vocabulary.rows_of(module, reduction) * programs_of(module, reduction), 1

    def split_costs(self, module: Module, cluster: Cluster, batch: int) -> dict[int, int]:
        """Nothing: the order of a sum leaves no choice."""
        return {}
