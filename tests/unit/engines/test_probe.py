"""How what an adapter touches is compared with an engine: what is missing is named, in a small package."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from specc.engines._probe import absent, probe

SmallEngine = Callable[[str], Path]


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("workers: LEVEL Worker", []),
        ("workers: LEVEL Drafter", ["workers has no Drafter"]),
        ("workers.Mode: DECODE is_idle is_decode", ["Mode has no is_decode"]),
        ("workers.Batch(rows lengths): rows lengths", []),
        ("workers.Batch(rows sum)", ["workers.Batch takes no sum"]),
        ("workers.Batch(lengths)", ["workers.Batch needs rows"]),
        ("workers.Worker: pool topk runner last draft close", []),
        ("workers.Worker: pools runners", ["Worker has no pools", "Worker has no runners"]),
        ("workers.Worker.step(batch publish)", []),
        ("workers.Worker.step(batch barrier)", ["Worker.step takes no barrier"]),
        ("workers.Worker.step()", ["Worker.step needs batch"]),
        ("workers.Worker.close(how fast)", []),
        ("workers.Worker.stop(batch)", ["Worker has no stop"]),
        ("workers.order(second\n    first)", []),
        ("workers.order", []),
        ("drafts.Drafter: pool", ["drafts has no Drafter"]),
        ("drafts", ["engine.srt has no drafts"]),
    ],
)
def test_what_is_missing_is_named(small_engine: SmallEngine, line: str, missing: list[str]) -> None:
    small_engine("engine.srt")
    assert [problem.partition(" (")[0] for problem in absent("engine.srt", line)] == missing


def test_why_something_is_not_there_is_told(small_engine: SmallEngine) -> None:
    """As where the engine has it, and lacks what it needs itself."""
    (small_engine("engine.srt") / "drafts.py").write_text("import what_nobody_installed\n\nclass Drafter: pass\n")
    assert list(absent("engine.srt", "drafts.Drafter")) == [
        "drafts has no Drafter (No module named 'what_nobody_installed')"
    ]


def test_all_that_is_missing_is_told_at_once(small_engine: SmallEngine, caplog: pytest.LogCaptureFixture) -> None:
    """Of what must be there as an error, of what may be missing in the log."""
    small_engine("engine")
    logger, must = logging.getLogger("engine.specc"), "workers.Worker: pools\nworkers.Batch(rows): rows"
    with pytest.raises(RuntimeError, match=r"^Engine 9\.1: Worker has no pools$"):
        probe("Engine 9.1", "engine", must, {}, logger)
    probe("Engine 9.1", "engine", "workers", {"all is slower": "workers.Worker: fast", "more": "workers"}, logger)
    assert [record.getMessage() for record in caplog.records] == ["Engine 9.1: Worker has no fast: all is slower"]
