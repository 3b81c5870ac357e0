"""The prefix cache against a model without a tree: a dict from beginnings of texts to pages."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.lab.engine.memory.kv_pool import PageAllocator
from specc.lab.engine.memory.prefix_cache import PrefixCache

TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), TEXTS),
        st.tuples(st.just("remember"), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.integers(0, 3)),
        st.tuples(st.just("evict"), st.integers(1, 4)),
    ),
    max_size=40,
)


@dataclass
class Model:
    """What must be cached: beginnings of texts, each with its page and when it was last used."""

    page_size: int
    lookahead: int
    pages: dict[tuple[int, ...], int] = field(default_factory=dict)
    used: dict[tuple[int, ...], int] = field(default_factory=dict)
    clock: int = 0

    def keys(self, text: tuple[int, ...], limit: int) -> list[tuple[int, ...]]:
        """The beginnings of a text that end where one of its full pages does, with the token to come."""
        ends = range(self.page_size, limit + 1, self.page_size)
        return [text[: end + self.lookahead] for end in ends if end + self.lookahead <= len(text)]

    def match(self, text: tuple[int, ...]) -> list[int]:
        """Pages of the longest known beginning."""
        self.clock += 1
        pages: list[int] = []
        for key in self.keys(text, len(text) - 1):
            if key not in self.pages:
                break
            self.used[key] = self.clock
            pages.append(self.pages[key])
        return pages

    def insert(self, text: tuple[int, ...], pages: list[int]) -> None:
        """Keep pages of a text unless its beginning is known."""
        self.clock += 1
        for key, page in zip(self.keys(text, len(text)), pages, strict=False):
            self.pages.setdefault(key, page)
            self.used[key] = self.clock

    def removable(self, held: set[int]) -> list[tuple[int, ...]]:
        """Beginnings that nobody holds and none continues."""
        step = self.page_size
        return [
            key
            for key, page in self.pages.items()
            if page not in held and not any(len(k) == len(key) + step and k[: len(key)] == key for k in self.pages)
        ]

    def evict(self, held: set[int], count: int) -> list[int] | None:
        """Remove the longest unused one by one; None, and no change, if there are fewer than `count`."""
        before, freed = dict(self.pages), []
        while len(freed) < count and (keys := self.removable(held)):
            oldest = min(keys, key=lambda key: (self.used[key], self.pages[key]))
            freed.append(self.pages.pop(oldest))
        if len(freed) == count:
            return freed
        self.pages = before
        return None


@settings(deadline=None, max_examples=300)
@given(page_size=st.integers(1, 3), lookahead=st.integers(0, 3), actions=ACTIONS)
def test_the_cache_is_the_model(page_size: int, lookahead: int, actions: list[tuple[str, object]]) -> None:
    allocator = PageAllocator(30, page_size)
    cache = PrefixCache(allocator, lookahead)
    model = Model(page_size, lookahead)
    running: list[tuple[str, tuple[int, ...]]] = []
    for number, (action, what) in enumerate(actions):
        held = {page for owner, _ in running for page in allocator.pages_of(owner)}
        if action == "enter":
            shared = cache.match(what)
            assert shared == model.match(what)
            assert len(shared) * page_size < len(what)
            owner = f"{number}"
            if allocator.pages_for(len(what)) - len(shared) <= allocator.free_pages:
                allocator.share(owner, shared)
                allocator.grow(owner, len(what))
                running.append((owner, what))
        elif action == "evict":
            freed = model.evict(held, what)
            before = allocator.free_pages
            assert cache.evict(what) is (freed is not None)
            assert allocator.free_pages == before + len(freed or ())
        elif running:
            owner, text = running[what % len(running)]
            cache.insert(text[: len(text) - 1 + lookahead], allocator.pages_of(owner))
            model.insert(text[: len(text) - 1 + lookahead], list(allocator.pages_of(owner)))
            if action == "leave":
                running.remove((owner, text))
                allocator.free(owner)
        check_holders(allocator, cache, model, [owner for owner, _ in running])


def check_holders(allocator: PageAllocator, cache: PrefixCache, model: Model, owners: list[str]) -> None:
    """Every page has one holder for each owner that has it, and one for the cache."""
    held = [page for owner in owners for page in allocator.pages_of(owner)]
    cached = set(model.pages.values())
    assert len(cache) == len(model.pages) == len(cached)
    for page in range(1, allocator.num_pages):
        assert allocator.holders(page) == held.count(page) + (page in cached)
    assert allocator.free_pages == allocator.capacity - len(cached | set(held))
    trial = Model(model.page_size, model.lookahead, dict(model.pages), dict(model.used))
    count = cache.evictable()
    assert trial.evict(set(held), count) is not None
    assert not trial.removable(set(held))


def test_a_shifted_draft_needs_the_token_after_a_page_to_be_the_same() -> None:
    allocator = PageAllocator(9, 2)
    caches = [PrefixCache(allocator, lookahead) for lookahead in (0, 1)]
    allocator.grow("a", 4)
    text, diverging = (5, 6, 7, 8, 9), (5, 6, 7, 8, 3, 3)
    for cache in caches:
        cache.insert(text[: 4 + cache.lookahead], allocator.pages_of("a"))
    first, second = allocator.pages_of("a")
    assert [cache.match(diverging) for cache in caches] == [[first, second], [first]]
    assert [cache.match(text) for cache in caches] == [[first, second]] * 2
    assert [cache.match(text[:4]) for cache in caches] == [[first]] * 2
    assert [cache.match(text[:2]) for cache in caches] == [[], []]


def test_a_disabled_cache_stays_empty_and_a_cleared_one_is() -> None:
    allocator = PageAllocator(9, 2)
    allocator.grow("a", 6)
    off, on = PrefixCache(allocator, 0, enabled=False), PrefixCache(allocator, 0)
    for cache in (off, on):
        cache.insert(range(6), allocator.pages_of("a"))
    assert (len(off), len(on)) == (0, 3)
    allocator.free("a")
    assert allocator.free_pages == 5
    on.clear()
    assert allocator.free_pages == allocator.capacity
    assert on.match(range(7)) == []


def test_pages_that_are_free_cannot_be_held() -> None:
    allocator = PageAllocator(4, 1)
    for act in (allocator.keep, allocator.drop):
        with pytest.raises(ValueError, match="page 2 is free"):
            act(2)
    allocator.grow("a", 1)
    with pytest.raises(ValueError, match="before it takes any"):
        allocator.share("a", allocator.pages_of("a"))
