"""What every family that reduces over a vocabulary shares: arguments, scratch, tiles and splits."""

from __future__ import annotations

from math import prod

from specc.ir.core import Module, Op, tensor_type
from specc.ir.nodes import is_external
from specc.ir.types import DTYPES
from specc.kernels.base import CAPACITY, MAX_SPLITS, Arguments, Cluster, Scratch, alignment, only, power_of_two

_BLOCK = 2048
_TAIL_TILES = 2
_PARTIALS = 2048
"""Partial results that the last arriver combines at once: 16 a thread, as many as it has logits in a tile."""


def block(module: Module, argmax: Op) -> int:
    """Elements of one tile of a logits row.

    2048 gives each of 128 threads two (16-bit) or four (f32) independent 16-byte loads without spilling; 4096 takes
    over 100 registers and has no more bytes in flight. Small vocabularies take the next power of two.
    """
    return max(256, min(_BLOCK, power_of_two(vocabulary(module, argmax))))


def vocabulary(module: Module, argmax: Op) -> int:
    """Entries of the vocabulary a row ranges over."""
    return tensor_type(argmax.operands[0]).sizes(module.dims)[-1]


def rows_of(module: Module, reduction: Op) -> int:
    """Logits rows of one request."""
    return prod(tensor_type(reduction.operands[0]).sizes(module.dims)[1:-1])


def most_splits(rows: int) -> int:
    """Most programs that share a row, a power of two, where one program combines the partials of so many rows."""
    return max(1, min(MAX_SPLITS, _PARTIALS // power_of_two(rows)))


def splits(
    module: Module,
    reduction: Op,
    rows: int,
    *,
    most: int = MAX_SPLITS,
    capacity: int = CAPACITY,
    tail: int = _TAIL_TILES,
) -> int:
    """Programs per row: as few waves over the device as possible, then as short as possible, then as few as possible.

    Args:
        module: module of the op.
        reduction: the op that reduces over the vocabulary.
        rows: logits rows of the launch.
        most: limit of the programs per row.
        capacity: programs of the kernel that a large GPU runs at once.
        tail: what a program takes besides its tiles, in tiles; an argmax two, for arriving and combining.
    """
    tiles = -(-vocabulary(module, reduction) // block(module, reduction))

    def cost(count: int) -> tuple[int, int]:
        waves = -(-rows * count // capacity)
        return waves * (-(-tiles // count) + tail), count

    return min(range(1, min(most, tiles) + 1), key=cost)


def head(module: Module, cluster: Cluster, name: str) -> Arguments:
    """The arguments all argmax families start with."""
    argmax = only(cluster, "vocab.argmax")
    arguments = Arguments()
    arguments.value("rows_ptr", argmax.operands[1])
    arguments.value("logits_ptr", argmax.operands[0])
    arguments.buffer("partial_value_ptr", "f32", f"{name}.partial_value")
    arguments.buffer("partial_index_ptr", "i32", f"{name}.partial_index")
    arguments.buffer("arrivals_ptr", "i32", f"{name}.arrivals")
    health(arguments, cluster)
    return arguments


def health(arguments: Arguments, cluster: Cluster) -> None:
    """Pass the health word, if the cluster raises it: in place, so the word after the last raise."""
    raised = [op for op in cluster if op.opcode == "health.raise"]
    if raised:
        arguments.value("health_ptr", raised[-1].result)


def scratch(module: Module, cluster: Cluster, name: str, most: int = MAX_SPLITS) -> tuple[Scratch, ...]:
    """Partial results per row and each of at most ``most`` splits, and one arrival counter per request."""
    *sizes, _ = tensor_type(only(cluster, "vocab.argmax").operands[0]).sizes(module.dims)
    return (
        Scratch(f"{name}.partial_value", "f32", (*sizes, most)),
        Scratch(f"{name}.partial_index", "i32", (*sizes, most)),
        Scratch(f"{name}.arrivals", "i32", (sizes[0],), zero=True),
    )


def constants(module: Module, cluster: Cluster, most: int = MAX_SPLITS) -> tuple[tuple[str, int], ...]:
    """V, STRIDE, SPLITS, BLOCK, and HEALTH_BIT of a raise; a logits row is contiguous, rows follow each other."""
    argmax = only(cluster, "vocab.argmax")
    vocab = vocabulary(module, argmax)
    sizes = (("V", vocab), ("STRIDE", vocab), ("SPLITS", most), ("BLOCK", block(module, argmax)))
    return sizes + health_bit(cluster, argmax)


def tiles(module: Module, cluster: Cluster) -> str:
    """Why the tile is what it is."""
    return tile_of(module, only(cluster, "vocab.argmax"))


def tile_of(module: Module, reduction: Op) -> str:
    """The tile of an op that reduces over a vocabulary, and how wide its rows' alignment lets loads be."""
    size = block(module, reduction)
    width = DTYPES[tensor_type(reduction.operands[0]).dtype].bytes
    bits = 8 * alignment(vocabulary(module, reduction) * width)
    return f"BLOCK {size} = {size * width} bytes a tile; rows allow {bits}-bit loads"


def health_bit(cluster: Cluster, reduction: Op) -> tuple[tuple[str, int], ...]:
    """The constant HEALTH_BIT of a reduction whose ``bad`` is raised in the cluster."""
    found = [op for op in cluster if op.opcode == "health.raise" and op.operands[1] is reduction.results[-1]]
    return tuple(("HEALTH_BIT", 1 << int(op.attrs["bit"])) for op in found)


def raises(module: Module, reduction: Op) -> list[Op]:
    """The health.raise of an op's last result: of ``bad`` rows of a reduction, of the ``orphan`` nodes of a tree."""
    return [user for user in module.users(reduction.results[-1]) if user.opcode == "health.raise"]


def clears(module: Module, raised: list[Op]) -> list[Op]:
    """The health.clear of a word that a raise is the only one to read: the raise may write the word instead."""
    before = [op.operands[0].source for op in raised]
    return [op for op in before if op and op.opcode == "health.clear" and module.users(op.result) == raised]


def advances(module: Module, reduction: Op) -> list[Op]:
    """The kv.advance of positions that no forward reads after the one behind a reduction."""
    forward = reduction.operands[0].source
    if forward is None or not is_external(forward):
        return []
    users = [module.users(value) for value in forward.operands]
    last = [readers for readers in users if [op for op in readers if is_external(op)][-1] is forward]
    return [op for readers in last for op in readers if op.opcode == "kv.advance"]


def repeats(module: Module, reduction: Op) -> list[Op]:
    """The tree.repeat of rows that the forward behind a reduction hands over."""
    forward = reduction.operands[0].source
    results = forward.results if forward is not None else ()
    return [user for value in results for user in module.users(value) if user.opcode == "tree.repeat"]
