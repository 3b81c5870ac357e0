"""What every family with a softmax top-k over a vocabulary shares: arguments, scratch, tiles and splits."""

from __future__ import annotations

from specc.ir.core import Module, Op, tensor_type
from specc.kernels import argmax as shared
from specc.kernels.base import MAX_SPLITS, Arguments, Cluster, Scratch, only, power_of_two

_PARTIAL_KEYS = 128
_CAPACITY = 132 * 5
_TAIL_TILES = 8


def places(module: Module) -> int:
    """K rounded up to a power of two."""
    return power_of_two(module.size("K"))


def max_splits(module: Module) -> int:
    """Most programs that share a row, a power of two: one block of 128 lanes holds a row's partial keys."""
    return min(MAX_SPLITS, _PARTIAL_KEYS // places(module))


def splits(module: Module, topk: Op, rows: int, capacity: int = _CAPACITY) -> int:
    """Programs per row, as `argmax.splits`: picking the best, arriving and combining take as long as eight tiles."""
    most = max_splits(module)
    return shared.splits(module, topk, rows, most=most, capacity=capacity, tail=_TAIL_TILES)


def head(cluster: Cluster, name: str) -> Arguments:
    """The arguments all families with a top-k start with."""
    topk = only(cluster, "vocab.topk")
    arguments = Arguments()
    arguments.value("rows_ptr", topk.operands[1])
    arguments.value("logits_ptr", topk.operands[0])
    arguments.buffer("partial_key_ptr", "i64", f"{name}.partial_key")
    arguments.buffer("partial_max_ptr", "f32", f"{name}.partial_max")
    arguments.buffer("partial_sum_ptr", "f32", f"{name}.partial_sum")
    arguments.buffer("arrivals_ptr", "i32", f"{name}.arrivals")
    shared.health(arguments, cluster)
    return arguments


def scratch(module: Module, cluster: Cluster, name: str) -> tuple[Scratch, ...]:
    """K keys, largest value and sum per row and split, and one arrival counter per request."""
    *sizes, _ = tensor_type(only(cluster, "vocab.topk").operands[0]).sizes(module.dims)
    rows = (*sizes, max_splits(module))
    return (
        Scratch(f"{name}.partial_key", "i64", (*rows, module.size("K"))),
        Scratch(f"{name}.partial_max", "f32", rows),
        Scratch(f"{name}.partial_sum", "f32", rows),
        Scratch(f"{name}.arrivals", "i32", (sizes[0],), zero=True),
    )


def constants(module: Module, cluster: Cluster) -> tuple[tuple[str, int], ...]:
    """K, V, STRIDE, SPLITS, BLOCK, and HEALTH_BIT of a raise; a logits row is contiguous, rows follow each other."""
    topk = only(cluster, "vocab.topk")
    vocab = shared.vocabulary(module, topk)
    sizes = (("K", module.size("K")), ("V", vocab), ("STRIDE", vocab))
    tile = (("SPLITS", max_splits(module)), ("BLOCK", shared.block(module, topk)))
    return sizes + tile + shared.health_bit(cluster, topk)


def tiles(module: Module, cluster: Cluster) -> str:
    """Why the tile is what it is."""
    return shared.tile_of(module, only(cluster, "vocab.topk"))
