"""Which shape adapters of all engines take next: by acceptance, or by what drafts promise where there are budgets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specc import runtime
from specc.engines._plugin import ServerError
from specc.engines._shapes import TIMES, Shapes
from specc.runtime import write_step_times
from specc.runtime.plan.shape import Shape

EVERY, TWO, ONE = Shape(3, 1, 4), Shape(3, 1, 4, 2), Shape(1, 1, 2)
BUCKETS = {EVERY: (8,), TWO: (8,), ONE: (8,)}
SLOW, FAST = {EVERY: {8: 4.0}, TWO: {8: 2.0}, ONE: {8: 2.0}}, {EVERY: {8: 2.0}, TWO: {8: 2.0}, ONE: {8: 2.0}}


def chooser(times: dict[Shape, dict[int, float]], buckets: dict[Shape, tuple[int, ...]] = BUCKETS) -> Shapes:
    return Shapes(runtime, buckets, lambda: times, lambda known: known)


@pytest.mark.parametrize(("times", "taken"), [(SLOW, TWO), (FAST, EVERY)])
def test_budgets_are_chosen_by_what_steps_expect(times: dict[Shape, dict[int, float]], taken: Shape) -> None:
    """Three tokens at all rows, and 2.4 of two rows: whichever comes to more in its time."""
    shapes = chooser(times)
    for _ in range(40):
        shape = shapes.choose(8)
        shapes.observe(shape, [1] * 8)
        shapes.expect(shape, [[1.5, 2.4, 3.0][: 1 if shape == ONE else 3]] * 8)
    assert shapes.choose(8) == taken
    assert shapes.expected == pytest.approx(1e3 * 8 * {EVERY: 3.0, TWO: 2.4}[taken] / times[taken][8])


def test_what_is_expected_says_nothing_where_there_are_no_budgets() -> None:
    shapes = chooser({EVERY: {8: 2.0}, ONE: {8: 1.0}}, {EVERY: (8,), ONE: (8,)})
    shapes.expect(shapes.choose(8), [[9.0]])
    shapes.take("1")
    shapes.expect(ONE, [[9.0]])
    assert shapes.choose(8) == ONE


def test_times_of_a_file_are_of_all_budgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = SimpleNamespace(device=torch.device("cpu"), manifest=SimpleNamespace(name="program", version="1"))
    path = tmp_path / "times.json"
    write_step_times(path, SLOW, program, engine="none")
    monkeypatch.setenv(TIMES, str(path))
    assert chooser({}).times == SLOW
    write_step_times(path, {EVERY: {8: 1.0}}, program, engine="none")
    with pytest.raises(ServerError, match=TIMES):
        chooser({})
