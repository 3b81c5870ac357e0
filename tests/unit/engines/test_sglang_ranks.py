"""What ranks of a server with tensor parallelism agree on, without SGLang: a group of threads stands for its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from specc.engines._plugin import ServerError
from specc.engines.sglang.server.ranks import agree, seeds

WAIT_S = 10


class Group:
    """One rank's view of a GroupCoordinator, whose ranks are threads."""

    def __init__(self, rank: int, objects: list[Any], barrier: Barrier) -> None:
        self.world_size, self._rank, self._objects, self._barrier = len(objects), rank, objects, barrier

    def all_gather_object(self, given: Any) -> list[Any]:
        self._objects[self._rank] = given
        self._barrier.wait(WAIT_S)
        return list(self._objects)

    def broadcast_object(self, given: Any, src: int) -> Any:
        return self.all_gather_object(given)[src]


def on_ranks(ranks: int, call: Callable[[Any, int], Any]) -> list[Any]:
    """What a call returns, or raises, on each rank of a group."""
    objects, barrier = [None] * ranks, Barrier(ranks)

    def run(rank: int) -> Any:
        try:
            return call(Group(rank, objects, barrier), rank)
        except ServerError as error:
            return error

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(run, range(ranks)))


def drawn(group: Any, _: int) -> list[int]:
    draw = seeds(group, 1 << 62)
    return [draw() for _ in range(5)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_draw_the_same_seeds(ranks: int) -> None:
    """Each seed is another one, and other servers have others."""
    first, *others = on_ranks(ranks, drawn)
    assert all(rank_seeds == first for rank_seeds in others)
    assert len({*first, *on_ranks(ranks, drawn)[0]}) == 10
    assert all(0 <= seed < 1 << 62 for seed in first)


def test_seeds_are_as_small_as_asked() -> None:
    (seeds_drawn,) = on_ranks(1, lambda group, _: [seeds(group, 3)() for _ in range(100)])
    assert {*seeds_drawn} == {0, 1, 2}


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_that_agree(ranks: int) -> None:
    facts = {"the program": "mine 0.1.0", "SPECC_CAPTURE": "graph"}
    assert on_ranks(ranks, lambda group, _: agree(group, facts)) == [None] * ranks


def test_a_rank_that_would_do_something_else_is_named_on_all() -> None:
    """Whichever it is, and if no program fits there."""
    for odd in range(3):
        errors = on_ranks(3, lambda group, rank, odd=odd: agree(group, {"a": 1, "b": None if rank == odd else "mine"}))
        values = ", ".join(f"{None if rank == odd else 'mine'} on rank {rank}" for rank in range(3))
        assert [str(error) for error in errors] == [f"specc: ranks would not run the same steps: b is {values}"] * 3
