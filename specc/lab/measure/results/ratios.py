"""Samples, summed up by their median and their middle half."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Spread:
    """The median of samples and their middle half."""

    median: float
    low: float
    high: float

    @classmethod
    def over(cls, samples: Sequence[float]) -> Self:
        """From two samples or more."""
        low, median, high = statistics.quantiles(samples, n=4)
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}..{self.high:.2f})"


@dataclass(frozen=True)
class Ratio(Spread):
    """How many times longer one side took than the other: median over pairs of samples, and the middle half of them."""

    @staticmethod
    def of(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
        """From samples taken in pairs."""
        return Ratio.over([first / second for first, second in zip(numerators, denominators, strict=True)])
