"""Whether two samples of texts may be of one distribution."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import torch

LEAST = 5
"""Chi-square holds where as many are expected in the smaller sample; counts of fewer are put together."""


Texts = Sequence[Sequence[int]]


def surprise(*pairs: tuple[Texts, Texts]) -> float:
    """How probable it is that texts differ as much as these do in each pair, if they are of one distribution.

    For every beginning of texts the counts of the tokens after it are compared by chi-square. Given the beginnings
    these are independent of each other, so that their sum is of a chi-square distribution, too.
    """
    square = freedom = 0.0
    for first, second in pairs:
        for place in range(len(first[0])):
            after = defaultdict[tuple[int, ...], tuple[Counter[int], Counter[int]]](lambda: (Counter(), Counter()))
            for index, texts in enumerate((first, second)):
                for text in texts:
                    after[tuple(text[:place])][index][text[place]] += 1
            for first_counts, second_counts in after.values():
                counts = table(first_counts, second_counts)
                square, freedom = square + chi_square(counts), freedom + counts.shape[1] - 1
    half = torch.tensor([freedom, square], dtype=torch.float64) / 2
    return torch.special.gammaincc(half[0], half[1]).item()


def table(first: Counter[int], second: Counter[int]) -> torch.Tensor:
    """Counts f64[2, n] of the tokens that are frequent, and of the others together; n is 1 where nothing is to tell."""
    both = first + second
    share = min(first.total(), second.total()) / both.total()
    frequent = [token for token, count in both.items() if count * share >= LEAST]
    columns = [(first[token], second[token]) for token in frequent]
    rest = (first.total() - sum(a for a, _ in columns), second.total() - sum(b for _, b in columns))
    columns = [*columns, rest] if sum(rest) * share >= LEAST or not columns else columns
    counts = torch.tensor(columns, dtype=torch.float64).T
    return counts if counts.sum(1).min() > 0 else counts.sum(1, keepdim=True)


def chi_square(counts: torch.Tensor) -> float:
    """Of two rows, how far they are from the same shares; 0 of one column."""
    expected = counts.sum(0, keepdim=True) * counts.sum(1, keepdim=True) / counts.sum()
    return ((counts - expected) ** 2 / expected).sum().item() if counts.shape[1] > 1 else 0.0
