"""The scheduler without an engine: who enters, who is thrown out, and which slots stand where in the request table."""

from __future__ import annotations

import pytest

from specc.lab.engine.errors import RequestTooLongError
from specc.lab.engine.memory.kv_pool import PageAllocator, ReqToToken
from specc.lab.engine.memory.prefix_cache import PrefixCache
from specc.lab.engine.serving.requests.request import Request, StopConditions
from specc.lab.engine.serving.scheduler import Scheduler

PAGE, RESERVE, CONTEXT = 4, 6, 64


def scheduler(pages: int = 40, max_batch: int = 3, *, prefixes: bool = False) -> Scheduler:
    allocator = PageAllocator(pages + 1, PAGE)
    cache = PrefixCache(allocator, 0, enabled=prefixes)
    table = ReqToToken(8, CONTEXT + RESERVE)
    return Scheduler(table, allocator, cache, max_batch=max_batch, max_context=CONTEXT, reserve=RESERVE)


def add(to: Scheduler, *prompts: list[int], new: int = 8) -> list[Request]:
    requests = [Request(number, tuple(prompt), StopConditions(new)) for number, prompt in enumerate(prompts)]
    for request in requests:
        to.add(request)
    return requests


def check(of: Scheduler) -> None:
    """Every running request has its slots, by position, in a row of its own, and nobody else has any."""
    rows = {request.row for request in of.running}
    assert len(rows) == len(of.running) <= of.max_batch
    for request in of.running:
        assert request.row
        slots = of.allocator.slots_of(of.allocator.pages_of(request))
        assert len(slots) >= request.committed + RESERVE
        held = of.table.tensor[request.row].tolist()
        assert held == (slots + [0] * len(held))[: len(held)]
    assert all(not of.table.tensor[row].any() for row in range(8) if row not in rows)
    assert of.table.free_rows == 7 - len(rows)


def test_as_many_run_as_a_batch_holds() -> None:
    of = scheduler()
    first, second, third, fourth = add(of, *[[1, 2, 3]] * 4)
    assert of.admit() == [first, second, third]
    check(of)
    of.release(second)
    assert of.admit() == [fourth]
    assert of.running == [first, third, fourth]
    check(of)


def test_steps_find_their_slots_behind_the_text() -> None:
    of = scheduler()
    requests = add(of, [1] * 3, [2] * 9, new=40)
    of.admit()
    for step in range(8):
        for request in requests:
            request.accept([7] * (1 + step % 3))
        assert of.reserve_step() == []
        check(of)


def test_the_youngest_makes_room() -> None:
    """9 pages hold three requests of 3 pages each, and no step more."""
    of = scheduler(pages=9)
    oldest, middle, youngest = add(of, *[[n] * 6 for n in (1, 2, 3)])
    assert of.admit() == [oldest, middle, youngest]
    oldest.accept([7] * 3)
    assert not of.can_reserve()
    assert of.reserve_step() == [youngest]
    assert (list(of.waiting), youngest.retractions, youngest.row) == ([youngest], 1, None)
    check(of)
    assert of.admit() == []


def test_what_failed_waits_in_its_order() -> None:
    of = scheduler()
    requests = add(of, *[[n] * 3 for n in range(5)])
    of.admit()
    of.expel(requests[:2])
    assert list(of.waiting) == [*requests[:2], *requests[3:]]
    assert of.running == [requests[2]]
    check(of)


@pytest.mark.parametrize(
    ("length", "new", "pages", "fits"),
    [(63, 8, 40, True), (64, 8, 40, False), (0, 8, 40, False), (6, 5, 4, True), (6, 6, 4, False),
     (6, 6, 5, True), (6, 2, 3, False), (5, 2, 3, True), (5, 3, 3, False)],
)  # fmt: skip
def test_what_can_never_run_is_refused(length: int, new: int, pages: int, fits: bool) -> None:
    """The context leaves room for a token; the pool has pages for all but the last token, and a step."""
    of = scheduler(pages=pages)
    if fits:
        add(of, [1] * length, new=new)
        assert len(of.admit()) == 1
    else:
        with pytest.raises(RequestTooLongError):
            add(of, [1] * length, new=new)


def test_pages_of_texts_are_shared_and_given_back() -> None:
    """12 pages: what a request leaves is found by the next one of its text, and makes room for one of another."""
    of = scheduler(pages=12, prefixes=True)
    (first,) = add(of, [1] * 17, new=1)
    of.admit()
    kept = of.allocator.pages_of(first)[:4]
    of.release(first)
    assert of.allocator.free_pages == 8
    (again,) = add(of, [1] * 17, new=1)
    of.admit()
    assert (of.allocator.pages_of(again)[:4], again.shared) == (kept, 16)
    check(of)
    of.release(again)
    (of_another_text,) = add(of, [2] * 30, new=1)
    assert of.admit() == [of_another_text]
    check(of)
    (latecomer,) = add(of, [1] * 17, new=1)
    assert of.admit() == []  # and what it would have shared is not held
    of.release(of_another_text, written=False)
    assert of.prefixes.evictable() == len(of.prefixes)
    assert of.admit() == [latecomer]


def test_who_resumes_has_something_to_read() -> None:
    """The last token before the one that is known, also where all of them are on pages that are shared."""
    of = scheduler(prefixes=True)
    (first,) = add(of, [1] * 17)
    of.admit()
    of.release(first)
    (again,) = add(of, [1] * 16)
    again.ids.append(1)
    again.resumes = True
    assert (of.admit(), again.shared, len(again.unread)) == ([again], 12, 16)


def test_what_nobody_has_written_is_not_shared() -> None:
    of = scheduler(prefixes=True)
    (first,) = add(of, [1] * 17)
    of.admit()
    of.expel([first])
    assert len(of.prefixes) == 0
    of.admit()
    assert first.shared == 0
