"""Ranks of a data-parallel group, in threads of one process or in processes, whose forwards wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from zlib import crc32

from specc.lab.engine.data_parallel import Peers

SECONDS = 60.0


class Meeting:
    """Callbacks whose every forward begins with a collective: all ranks must be in the same one, with the same rows.

    A prefill's rows are each rank's own. calls: the forwards that have begun, with their rows.
    """

    def __init__(self, callbacks: Any, peers: Peers) -> None:
        """peers: of a group that nothing else uses."""
        self.callbacks, self.peers = callbacks, peers
        self.calls: list[tuple[str, int | None, int]] = []

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.callbacks, name)
        return partial(self._call, name, member) if callable(member) else member

    def _call(self, name: str, forward: Callable[..., Any], **operands: Any) -> Any:
        rows = 0 if name.startswith("prefill") else len(operands["rows"])
        self.calls.append((name, operands.get("step"), rows))
        number = crc32(repr(self.calls[-1]).encode())
        if self.peers.largest([number, -number]) != [number, -number]:
            raise AssertionError(f"this rank is in {self.calls[-1]}, another one is not")
        return forward(**operands)


class Turns:
    """Ranks in threads, of which one runs at a time: the one that holds `baton`."""

    def __init__(self, count: int, baton: threading.Condition) -> None:
        self.count, self.baton = count, baton
        self.given: dict[int, Sequence[int]] = {}
        self.answers: list[list[int]] = []
        self.gone = False

    def seat(self, rank: int) -> Seat:
        """One rank's place."""
        return Seat(self, rank)

    def leave(self) -> None:
        """As if a process had ended: nobody waits for it."""
        self.gone = True
        self.baton.notify_all()

    def largest(self, rank: int, numbers: Sequence[int]) -> list[int]:
        """Wait for all ranks, letting others run meanwhile."""
        turn = len(self.answers)
        self.given[rank] = numbers
        if len(self.given) == self.count:
            self.answers.append([max(column) for column in zip(*self.given.values(), strict=True)])
            self.given.clear()
            self.baton.notify_all()
        if not self.baton.wait_for(lambda: len(self.answers) > turn or self.gone, SECONDS):
            raise TimeoutError("the others do not come")
        if len(self.answers) == turn:
            raise ConnectionError("another rank is gone")
        return self.answers[turn]


class Seat:
    """A rank's view of `Turns`."""

    def __init__(self, turns: Turns, rank: int) -> None:
        self.turns, self.rank = turns, rank

    def largest(self, numbers: Sequence[int]) -> list[int]:
        return self.turns.largest(self.rank, numbers)


def run_ranks(works: Sequence[Callable[[Peers, Peers], Any]]) -> list[Any]:
    """Run a function for each rank, given its seats in two groups; what each returned or raised."""
    baton = threading.Condition()
    groups = [Turns(len(works), baton) for _ in range(2)]
    results: list[Any] = [None] * len(works)

    def run(rank: int, work: Callable[[Peers, Peers], Any]) -> None:
        with baton:
            try:
                results[rank] = work(*(group.seat(rank) for group in groups))
            except Exception as error:
                results[rank] = error
                for group in groups:
                    group.leave()

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    return results
