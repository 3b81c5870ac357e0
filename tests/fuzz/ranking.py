"""Rows of logits and trees of candidates, in plain Python, as docs/semantics.md says it.

Where two path scores are so close that rounding decides (docs/semantics.md asks for f32, not for an order of adding
up), an oracle does not know which of two drafts is verified; `Doubt` says so. Only drafts can be in doubt: whatever
they are, the text is the target's own.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

INF = float("inf")
CLOSE = 1e-5
"""How far, relatively, two programs' f32 scores of one path may lie apart."""


class Doubt(Exception):
    """Which drafts are verified hangs on rounding."""


def f32(value: float) -> float:
    """The nearest f32, an infinity beyond the largest."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(INF, value)


# --- one row of logits ------------------------------------------------------------------------------------------------


def argmax(row: list[float]) -> tuple[int, bool]:
    """The largest value, lowest index on ties, NaN as -inf; and whether the row is bad."""
    best, index, bad = -INF, 0, False
    for i, value in enumerate(row):
        if math.isnan(value):
            bad = True
        elif value > best:
            best, index = value, i
    return index, bad or math.isinf(best)


@dataclass(frozen=True)
class Choice:
    """One of the most probable tokens of a row: f32 probability, and whether every program finds exactly that.

    `same`: equal for choices of one row that are equally probable.
    """

    token: int
    p: float
    exact: bool
    same: tuple[int, float]


def ranked(row: list[float]) -> list[int]:
    """Indices of the largest value first, lowest index on ties, NaN as -inf."""
    values = [-INF if math.isnan(value) else value + 0.0 for value in row]
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


def most_probable(number: int, row: list[float], count: int) -> list[Choice]:
    """The most probable tokens in descending order, lowest index on ties."""
    values = [-INF if math.isnan(value) else value + 0.0 for value in row]
    best = max(values)
    first = ranked(row)[:count]
    if best == -INF:
        return [Choice(token, 0.0, True, (number, -INF)) for token in first]
    weights = [1.0 if value == best else math.exp(value - best) if value > -INF else 0.0 for value in values]
    exact = all(weight in (0.0, 1.0) for weight in weights)
    total = math.fsum(weights)
    choices = []
    for token in first:
        p = f32(weights[token] / total)
        choices.append(Choice(token, p, exact or weights[token] / total < 1e-47, (number, values[token])))
    return choices


def log_probability(row: list[float], index: int) -> float:
    """The logarithm of a token's probability."""
    values = [-INF if math.isnan(value) else value for value in row]
    best = max(values)
    if best == -INF:
        return -INF
    shifted = [0.0 if value == best else f32(value - best) for value in values]
    return shifted[index] - math.log(math.fsum(math.exp(value) for value in shifted))


# --- trees ------------------------------------------------------------------------------------------------------------


@dataclass
class Branch:
    """A candidate: a token at the end of a path, by its number over all steps.

    `path` is equal for candidates whose scores are the same product; `exact` says that every program finds the score.
    """

    number: int
    token: int
    score: float
    exact: bool
    path: tuple[Any, ...]
    depth: int
    parent: Branch | None
    hidden: int | None = None

    def child(self, number: int, choice: Choice) -> Branch:
        """The candidate that continues this one."""
        score = f32(self.score * choice.p)
        zero = (choice.exact and choice.p == 0.0) or (self.exact and self.score == 0.0)
        return Branch(
            number, choice.token, score, (self.exact and choice.exact) or zero, (*self.path, choice.same),
            self.depth + 1, self,
        )  # fmt: skip


def best_of(branches: list[Branch], count: int, *, ordered: bool) -> list[Branch]:
    """Those of the highest score, lowest number on ties. Doubt when rounding decides who, or, if `ordered`, where."""
    ranked = sorted(branches, key=lambda branch: (-branch.score, branch.number))
    for i, (better, worse) in enumerate(pairwise(ranked)):
        if not ordered and i != count - 1:
            continue
        if i >= count:
            break
        if _in_doubt(better, worse):
            raise Doubt
    # Candidates that tie by rounding with the first left out may stand anywhere behind it.
    if count < len(ranked):
        edge = ranked[count - 1]
        if any(_in_doubt(edge, left_out) for left_out in ranked[count:]):
            raise Doubt
        if any(_in_doubt(kept, ranked[count]) for kept in ranked[:count]):
            raise Doubt
    return ranked[:count]


def _in_doubt(first: Branch, second: Branch) -> bool:
    if (first.exact and second.exact) or first.path == second.path:
        return False
    return abs(first.score - second.score) <= CLOSE * max(first.score, second.score) + 1e-36


@dataclass
class Tree:
    """What the target verifies: tokens and parents by column, the root first with the parent -1."""

    tokens: list[int]
    parents: list[int]

    def depth(self, column: int) -> int:
        """Steps below the root."""
        return 0 if column == 0 else 1 + self.depth(self.parents[column])

    def ancestors(self, column: int) -> list[int]:
        """Columns from the root to the node itself."""
        return [0] if column == 0 else [*self.ancestors(self.parents[column]), column]


def products(root: int, places: list[list[Choice]], nodes: int) -> Tree:
    """The best products of the choices of all places, found as docs/semantics.md says. Doubt when rounding decides."""
    start = Branch(0, root, 1.0, True, (), 0, None)
    tree, found = Tree([root], [-1]), [start]
    offers = [(start.child(1, places[0][0]), 0, 0)]  # a branch, its parent's column, its rank
    while len(found) < nodes:
        (best,) = best_of([branch for branch, _, _ in offers], 1, ordered=False)
        taken = next(offer for offer in offers if offer[0] is best)
        offers.remove(taken)
        _, parent, rank = taken
        column = len(found)
        found.append(best)
        tree.tokens.append(best.token)
        tree.parents.append(parent)
        if rank + 1 < len(places[0]):
            offers.append((found[parent].child(2 * column, places[best.depth - 1][rank + 1]), parent, rank + 1))
        if best.depth < len(places):
            offers.append((best.child(2 * column + 1, places[best.depth][0]), column, 0))
    return tree


def chain(root: int, drafts: list[int]) -> Tree:
    """A tree of one branch."""
    return Tree([root, *drafts], list(range(-1, len(drafts))))
