"""The order of a head's weights of 8 bits, whose pairs lie in words of 16. Imports nothing."""

from __future__ import annotations

from typing import Any

APART = 16
"""Weights of an entry that are so far apart lie beside each other: one instruction then makes two pairs of numbers of
16 bits from two words, and each pair is of places that follow each other."""


def are_paired(width: int, size: int) -> bool:
    """Whether weights lie in pairs: those of one byte (``size``), in rows of whole groups of two times `APART`."""
    return size == 1 and width % (2 * APART) == 0


def paired(weights: Any) -> Any:
    """Weights T[n, W] in pairs, a copy; as they are where they do not lie so."""
    return _reordered(weights, 2, APART)


def in_place(weights: Any) -> Any:
    """Weights T[n, W] of pairs where their rows have them again: what `paired` has made."""
    return _reordered(weights, APART, 2)


def _reordered(weights: Any, outer: int, inner: int) -> Any:
    rows, width = weights.shape
    if not are_paired(width, weights.element_size()):
        return weights
    return weights.view(rows, -1, outer, inner).transpose(2, 3).reshape(rows, width)
