"""Layers of a target that a draft reads where its directory does not list them, counted from 1.

A target of too few layers has them not: then they do not ascend from 1 to its last one.
"""

from __future__ import annotations

from itertools import pairwise


def three_levels(depth: int, _: int = 1) -> tuple[int, ...]:
    """Return an early layer of ``depth``, a middle one and a late one."""
    return 2, depth // 2, depth - 3


def evenly_spread(depth: int, count: int) -> tuple[int, ...]:
    """Return so many layers of ``depth``, evenly spread from the second to the last but two."""
    if count == 1:
        return (depth // 2 + 1,)
    first, last = 1, depth - 3
    return tuple(round(first + place * (last - first) / (count - 1)) + 1 for place in range(count))


def are_layers(layers: tuple[int, ...], depth: int) -> bool:
    """Return whether these are some layers of ``depth``, strictly ascending."""
    return 1 <= layers[0] <= layers[-1] <= depth and all(layer < other for layer, other in pairwise(layers))
