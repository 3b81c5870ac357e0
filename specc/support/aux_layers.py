"""Layers of a target that a draft reads where its directory does not list them, counted from 1.

A target of too few layers has them not: then they do not ascend from 1 to its last one.
"""

from __future__ import annotations

from itertools import pairwise


def eagle3_layers(depth: int, _: int = 1) -> tuple[int, ...]:
    """Return the layers that EAGLE3 heads are usually trained on, of ``depth`` (arXiv 2503.01840)."""
    return 2, depth // 2, depth - 3


def dflash_layers(depth: int, drafting: int) -> tuple[int, ...]:
    """Return the layers that a DFlash draft reads: as many as it has itself, evenly spread (arXiv 2602.06036).

    ``depth`` is the target's number of layers, ``drafting`` the draft's.
    """
    if drafting == 1:
        return (depth // 2 + 1,)
    first, last = 1, depth - 3
    return tuple(round(first + place * (last - first) / (drafting - 1)) + 1 for place in range(drafting))


def are_layers(layers: tuple[int, ...], depth: int) -> bool:
    """Return whether these are some layers of ``depth``, strictly ascending."""
    return 1 <= layers[0] <= layers[-1] <= depth and all(layer < other for layer, other in pairwise(layers))
