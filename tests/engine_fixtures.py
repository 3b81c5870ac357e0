"""Fixtures of the folders of real engines: one engine per variant, some at a time; each serves the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from engine_environment import Environment
from folder_items import items_below

V = TypeVar("V")
T = TypeVar("T")


def mark(config: pytest.Config, items: list[pytest.Item], folder: Path, environment: Environment) -> None:
    """Mark everything in an engine's folder by the folder's name, and skip it unless it is asked for."""
    wanted = folder.name in config.getoption("markexpr") and environment.ready.exists()
    for item in items_below(folder, items):
        item.add_marker(folder.name)
        if not wanted:
            reason = f"needs {environment.engine}'s environment: run `make {folder.name}`"
            item.add_marker(pytest.mark.skip(reason=reason))


def asked(tests: Iterable[pytest.Item], *parameters: str) -> list[Any]:
    """What some tests have for these parameters, but those that are skipped."""
    given = [
        item.callspec.params
        for item in tests
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and not _is_skipped(item)
    ]
    return [params[name] for params in given for name in parameters if name in params]


def _is_skipped(item: pytest.Item) -> bool:
    return any(mark.args[0] for mark in item.iter_markers("skipif"))


@contextmanager
def side_by_side(jobs: int) -> Iterator[ThreadPoolExecutor]:
    """Some jobs at a time; those that have not begun when nobody waits any more never do."""
    pool = ThreadPoolExecutor(jobs)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def started(pool: ThreadPoolExecutor, variants: Iterable[V], run: Callable[[V], T]) -> Mapping[V, Future[T]]:
    """What `run` finds for each variant, in this order."""
    return {variant: pool.submit(run, variant) for variant in dict.fromkeys(variants)}


@pytest.fixture
def served(variant: Any, running: Mapping[Any, Future[Any]]) -> Any:
    """What the engine of the test's variant answered."""
    return running[variant].result()


@pytest.fixture
def plain(running: Mapping[Any, Future[Any]]) -> Any:
    """What the first engine answered: it does not speculate, and no abort was sent to it."""
    return next(iter(running.values())).result()
