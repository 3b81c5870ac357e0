"""Sizes in whole units; of the runtime, which is an island, `specc.runtime.rounding` does the same."""

from __future__ import annotations


def round_up(size: int, unit: int) -> int:
    """The smallest multiple of ``unit`` that is no less than ``size``."""
    return -(-size // unit) * unit
