"""What reductions over a vocabulary share: rows, tiles, splits, the prologue, and the dimensions of results."""

from __future__ import annotations

from math import prod

from specc.ir.core import Module, Op, tensor_type
from specc.ir.types import DTYPES
from specc.kernels.shared.base import CAPACITY, MAX_SPLITS, Cluster, alignment, power_of_two
from specc.kernels.shared.text import Text
from specc.kernels.shared.tiles import is_prologue, tile_of

_BLOCK = 2048
_PARTIALS = 2048
"""Partial results that the last arriver combines at once: 16 a thread, as many as it has logits in a tile."""
_PARTIAL_KEYS = 128
"""Lanes of the block that holds a row's partial keys of a top-k."""
_TAIL_TILES = {"vocab.argmax": 2, "vocab.topk": 8}
"""What arriving and combining take, in tiles."""
_CAPACITY = {"vocab.argmax": CAPACITY, "vocab.topk": 132 * 5}
"""Programs that a large GPU runs at once."""


def logits_of(reduction: Op, cluster: Cluster) -> tuple[Op, ...]:
    """The ops of a cluster that change logits before a reduction reads them, first to last."""
    found: list[Op] = []
    source = reduction["logits"].source
    while source is not None and source in cluster and is_prologue(source):
        found.insert(0, source)
        source = source["logits"].source
    return tuple(found)


def vocabulary(module: Module, reduction: Op) -> int:
    """Entries of the vocabulary a row ranges over."""
    return tensor_type(reduction["logits"]).sizes(module.dims)[-1]


def rows_of(module: Module, reduction: Op) -> int:
    """Logits rows of one request."""
    return prod(tensor_type(reduction["logits"]).sizes(module.dims)[1:-1])


def block(module: Module, reduction: Op) -> int:
    """Elements of one tile of a logits row.

    2048 gives each of 128 threads two (16-bit) or four (f32) independent 16-byte loads without spilling; 4096 takes
    over 100 registers and has no more bytes in flight. Small vocabularies take the next power of two.
    """
    return max(256, min(_BLOCK, power_of_two(vocabulary(module, reduction))))


def most_splits(module: Module, reduction: Op) -> int:
    """Most programs that share a row, a power of two, where one program combines the partials of all rows."""
    if reduction.opcode == "vocab.topk":
        return min(MAX_SPLITS, max(1, _PARTIAL_KEYS // power_of_two(module.size("K"))))
    return max(1, min(MAX_SPLITS, _PARTIALS // power_of_two(rows_of(module, reduction))))


def splits(module: Module, reduction: Op, batch: int, resident: int) -> int:
    """Programs per row: as few waves over the device as possible, then as short as possible, then as few as possible.

    ``resident``: programs that run at once, if the kernel lets fewer do so than its scan does.
    """
    tiles_ = -(-vocabulary(module, reduction) // block(module, reduction))
    rows, tail = batch * rows_of(module, reduction), _TAIL_TILES[reduction.opcode]
    capacity = min(resident, _CAPACITY[reduction.opcode])

    def cost(count: int) -> tuple[int, int]:
        waves = -(-rows * count // capacity)
        return waves * (-(-tiles_ // count) + tail), count

    return min(range(1, min(most_splits(module, reduction), tiles_) + 1), key=cost)


def tiles(module: Module, reduction: Op) -> str:
    """The tile, and how wide its rows' alignment lets loads be."""
    size = block(module, reduction)
    width = DTYPES[tensor_type(reduction["logits"]).dtype].bytes
    bits = 8 * alignment(vocabulary(module, reduction) * width)
    return f"BLOCK {size} = {size * width} bytes a tile; rows allow {bits}-bit loads"


def sizes(module: Module, reduction: Op) -> list[tuple[str, int]]:
    """V, STRIDE, SPLITS and BLOCK; a logits row is contiguous, rows follow each other."""
    vocab, most = vocabulary(module, reduction), most_splits(module, reduction)
    return [("V", vocab), ("STRIDE", vocab), ("SPLITS", most), ("BLOCK", block(module, reduction))]


def prologue(text: Text, reduction: Op, cluster: Cluster) -> tuple[str, str]:
    """The function of a block of logits that a scan calls, and the memory that it reads, as a tuple."""
    ops = logits_of(reduction, cluster)
    if not ops:
        return text.use("identity"), "None"
    lines: list[str] = []
    pointers: list[str] = []
    for op in ops:
        function = tile_of(op)
        assert function is not None
        given: list[str] = []
        for parameter in function.parameters:
            if parameter.endswith("_ptr"):
                stem = parameter.removesuffix("_ptr")
                pointers.append(text.pointer(op[stem], stem))
                given.append(f"operands[{len(pointers) - 1}]")
            elif parameter.isupper():
                given.append(f"{parameter}={text.constant(op, parameter)}")
            else:
                given.append(parameter)
        lines.append(f"logits = {text.use(function)}({', '.join(given)})")
    text.prologue += ["def prologue(logits, column, row, operands):", *(f"    {line}" for line in lines)]
    text.prologue.append("    return logits")
    return "prologue", f"({', '.join(pointers)}{',' * (len(pointers) == 1)})"


def lift(text: Text, name: str, wanted: int, rank: int, *, before: bool) -> None:
    """Let a block have the dimensions of its type: axes of one element are missing, before or after the others."""
    if rank == 0 < wanted:
        text.body.append(f"{name} = {text.use('lift')}({name}, {wanted})")
    elif rank < wanted:
        missing = ["None"] * (wanted - rank)
        axes = [*missing, *[":"] * rank] if before else [*[":"] * rank, *missing]
        text.body.append(f"{name} = {name}[{', '.join(axes)}]")
