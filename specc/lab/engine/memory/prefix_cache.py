"""Beginnings of texts whose keys and values are still in the pools, so that another request need not prefill them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specc.lab.engine.memory.kv_pool import PageAllocator


@dataclass(eq=False)
class _Node:
    """One full page: its tokens, as `PrefixCache` keys them, and when it was last used."""

    key: tuple[int, ...]
    page: int
    parent: _Node | None
    used: int = 0
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)


class PrefixCache:
    """A tree of full pages, one path per text: a page is found by the tokens in it and in all pages before it.

    The cache is one more holder of its pages. It lets go of those that no request holds, the longest unused
    first and never a page that others continue, when somebody needs the memory.

    Target and draft share page numbers, so a page counts only if all models have filled it. Where the draft's keys
    and values at position p depend on the `lookahead` tokens after p as well, as many tokens after a page are part of
    what the page is found by.
    """

    def __init__(self, allocator: PageAllocator, lookahead: int, *, enabled: bool = True) -> None:
        """Start empty; a cache that is not enabled stays so."""
        self.allocator, self.lookahead, self.enabled = allocator, lookahead, enabled
        self._root = _Node((), 0, None)
        self._nodes: dict[int, _Node] = {}
        self._clock = 0

    def __len__(self) -> int:
        """Return how many pages the cache holds."""
        return len(self._nodes)

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Pages of the longest known beginning of a text that leaves at least one of its tokens over."""
        self._clock += 1
        node, pages = self._root, []
        for key in self._keys(tokens[: len(tokens) - 1 + self.lookahead]):
            child = node.children.get(key)
            if child is None:
                break
            child.used = self._clock
            pages.append(child.page)
            node = child
        return pages

    def insert(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Keep the full pages of a text.

        tokens: those with keys and values in all pools, and `lookahead` more; pages: where they are, in order.
        A beginning that is known already keeps the pages it has.
        """
        if not self.enabled:
            return
        self._clock += 1
        node = self._root
        for key, page in zip(self._keys(tokens), pages, strict=False):
            if key not in node.children:
                self.allocator.keep(page)
                node.children[key] = self._nodes[page] = _Node(key, page, node)
            node = node.children[key]
            node.used = self._clock

    def evictable(self) -> int:
        """How many pages `evict` could free: those that no request holds and nothing in use continues."""
        held: set[int] = set()
        for node in self._nodes.values():
            if self.allocator.holders(node.page) > 1:
                held.update(self._path(node, held))
        return len(self._nodes) - len(held)

    def evict(self, count: int) -> bool:
        """Free `count` pages, the longest unused first; returns False, and frees none, if there are fewer."""
        if count > self.evictable():
            return False
        leaves = [(node.used, node.page) for node in self._nodes.values() if self._is_loose(node)]
        heapq.heapify(leaves)
        for _ in range(count):
            node = self._nodes[heapq.heappop(leaves)[1]]
            parent = self._remove(node)
            if self._is_loose(parent):
                heapq.heappush(leaves, (parent.used, parent.page))
        return True

    def clear(self) -> None:
        """Let go of every page, those that requests hold included; the requests keep theirs."""
        for page in self._nodes:
            self.allocator.drop(page)
        self._nodes.clear()
        self._root.children.clear()

    def _keys(self, tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """What the full pages of a text are found by, in order."""
        page = self.allocator.page_size
        for start in range(0, len(tokens) - page - self.lookahead + 1, page):
            yield tuple(tokens[start : start + page + self.lookahead])

    def _path(self, node: _Node, known: set[int]) -> Iterator[int]:
        """Yield the pages from a node up to the root, or to one that is known."""
        while node.parent is not None and node.page not in known:
            yield node.page
            node = node.parent

    def _is_loose(self, node: _Node) -> bool:
        """Whether a node can be removed: no request holds its page and nothing continues it."""
        return node.parent is not None and not node.children and self.allocator.holders(node.page) == 1

    def _remove(self, node: _Node) -> _Node:
        """Take a node out of the tree and let go of its page; returns its parent."""
        assert node.parent is not None
        del node.parent.children[node.key], self._nodes[node.page]
        self.allocator.drop(node.page)
        return node.parent
