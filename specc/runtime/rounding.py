"""Sizes in whole units."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

Size = TypeVar("Size", int, Tensor)


def round_up(size: Size, unit: int) -> Size:
    """The smallest multiple of `unit` that is no less than `size`; of a tensor i64[...], of every number."""
    return (size + unit - 1) // unit * unit
