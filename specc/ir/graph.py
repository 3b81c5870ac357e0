"""Directed graphs: a topological order, what follows from what, and the fewest edges that say it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

N = TypeVar("N", bound=Hashable)


class CircleError(ValueError):
    """Nodes of a graph wait for each other."""


class Digraph(Generic[N]):
    """Nodes, and at most one edge from one to another; ``after`` has by node those that its edges lead to.

    Nodes and edges are in the order in which they came, so that nothing depends on hashes.
    """

    def __init__(self, nodes: Iterable[N] = (), edges: Iterable[tuple[N, N]] = ()) -> None:
        self.after: dict[N, dict[N, None]] = {node: {} for node in nodes}
        for before, after in edges:
            self.add(before, after)

    @property
    def edges(self) -> list[tuple[N, N]]:
        """All edges."""
        return [(node, other) for node, others in self.after.items() for other in others]

    def add(self, before: N, after: N) -> None:
        """Add an edge, and what it joins."""
        self.after.setdefault(before, {})[after] = None
        self.after.setdefault(after, {})

    def before(self) -> dict[N, list[N]]:
        """By node those whose edges lead to it."""
        found: dict[N, list[N]] = {node: [] for node in self.after}
        for node, other in self.edges:
            found[other].append(node)
        return found

    def sorted(self, key: Callable[[N], Any] | None = None) -> list[N]:
        """A topological order; of nodes that may be next the one of the least ``key``, or that came first, is.

        Raises:
            CircleError: there is none.

        """
        place = {node: index for index, node in enumerate(self.after)}
        waits = {node: len(others) for node, others in self.before().items()}
        ready = [(key(node) if key else 0, place[node], node) for node, count in waits.items() if not count]
        heapify(ready)
        found: list[N] = []
        while ready:
            node = heappop(ready)[-1]
            found.append(node)
            for other in self.after[node]:
                waits[other] -= 1
                if not waits[other]:
                    heappush(ready, (key(other) if key else 0, place[other], other))
        if len(found) < len(place):
            raise CircleError("nodes wait for each other in a circle")
        return found

    @property
    def has_circle(self) -> bool:
        """Whether nodes wait for each other."""
        try:
            self.sorted()
        except CircleError:
            return True
        return False

    def reduced(self) -> dict[N, list[N]]:
        """By node those it waits for at once: the fewest edges from which all others follow. Raises CircleError."""
        reached: dict[N, set[N]] = {}
        found: dict[N, list[N]] = {node: [] for node in self.after}
        for node in reversed(self.sorted()):
            others = self.after[node]
            further = {end for other in others for end in reached[other]}
            reached[node] = further | others.keys()
            for other in others.keys() - further:
                found[other].append(node)
        return found

    def longest(self) -> int:
        """How many nodes the longest path has. Raises CircleError."""
        length: dict[N, int] = {}
        for node in reversed(self.sorted()):
            length[node] = 1 + max((length[other] for other in self.after[node]), default=0)
        return max(length.values(), default=0)


def reachable(start: Iterable[N], follow: Callable[[N], Iterable[N]]) -> set[N]:
    """What is led to, directly or not, from some nodes, which are not among it unless they are led to."""
    found: set[N] = set()
    waiting = [other for node in start for other in follow(node)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += follow(node)
    return found
