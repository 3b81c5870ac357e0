"""Runs of branches against a walk over positions, one at a time, on the compiler's side and on the runtime's."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from specc.compiler.ir.analysis.page_runs import PageRuns
from specc.compiler.support.rounding import round_up
from specc.runtime.rounding import round_up as round_up_there
from specc.runtime.semantics.moves import branch_run

SIZES = [(page, room) for page in (1, 2, 3, 4, 16) for room in (1, 2, 3, 5, 16, 17)]


def walk(base: int, page: int, room: int, branches: int) -> tuple[list[int], int]:
    """Where every branch begins, and where the last one's pages end, for a text of ``base`` tokens.

    A branch takes the page that its tail lies in and then page after page until it has its room; the next branch
    begins behind it, with a tail as long.
    """
    tail = base % page
    begins, position = list[int](), base - tail
    for _ in range(branches):
        begins.append(position + tail)
        drafted, end = 0, position
        while drafted < room:
            end += page
            drafted = end - begins[-1]
        position = end
    return begins, position


@pytest.mark.parametrize(("page", "room"), SIZES)
def test_runs(page: int, room: int) -> None:
    runs, branches = PageRuns(page, room), 3
    for base in range(2 * page, 4 * page):
        begins, _ = walk(base, page, room, branches)
        run = runs.run(base % page)
        assert begins == [base + k * run for k in range(branches)]
        assert branch_run(base, page, room) == run
        assert branch_run(torch.tensor([0, base]), page, room).tolist() == [runs.run(0), run]
        taken = [{at // page for at in range(begin - base % page, begin + room)} for begin in begins]
        assert all(a.isdisjoint(b) for a, b in pairwise(taken))


@pytest.mark.parametrize(("page", "room"), SIZES)
@pytest.mark.parametrize("branches", [1, 2, 5])
def test_the_most_that_runs_take(page: int, room: int, branches: int) -> None:
    runs, bases = PageRuns(page, room), range(page, 2 * page)
    assert runs.span(branches) == max(walk(base, page, room, branches)[1] - base for base in bases)
    assert runs.longest == max(walk(base, page, room, 1)[1] - base // page * page for base in bases)


def test_sizes_in_whole_units() -> None:
    for unit in (1, 2, 3, 16, 256):
        for size in range(2 * unit + 2):
            wanted = next(multiple for multiple in range(0, 4 * unit, unit) if multiple >= size)
            assert round_up(size, unit) == round_up_there(size, unit) == wanted
            assert round_up_there(torch.tensor([size]), unit).tolist() == [wanted]
