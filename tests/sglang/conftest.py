"""Engines of SGLang, one per variant, two at a time; each serves the same requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from sglang_files import HERE, READY
from sglang_models import write_models
from sglang_programs import build_program
from sglang_server import PLAIN, Served, Variant, serve
from sglang_workload import without_aborts, workload

REQUESTS = 200
SEED = 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark everything in this folder, and skip it unless it is asked for."""
    asked = "sglang" in config.getoption("markexpr")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.sglang)
            if not asked or not READY.exists():
                item.add_marker(pytest.mark.skip(reason="needs SGLang's environment: run `make sglang`"))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the models."""
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture(scope="session")
def running(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Variant, Future[Served]]]:
    """All engines that the tests of this run ask for, started two at a time."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    asked = (value for given in params for value in given.values() if isinstance(value, Variant))
    variants = dict.fromkeys([PLAIN, *asked])
    folder, requests = tmp_path_factory.mktemp("jobs"), workload(REQUESTS, SEED)
    pool = ThreadPoolExecutor(2)

    def run(variant: Variant) -> Served:
        given = without_aborts(requests) if variant == PLAIN else requests
        engine = variant.engine(models)
        wheel = build_program(engine, folder / f"{variant}-wheel", *variant.options) if variant.program else None
        return serve(engine, given, folder / str(variant), overlap=variant.overlap, wheel=wheel)

    def start(variant: Variant) -> Future[Served]:
        return pool.submit(run, variant)

    yield {variant: start(variant) for variant in variants}
    pool.shutdown(cancel_futures=True)


@pytest.fixture
def served(variant: Variant, running: Mapping[Variant, Future[Served]]) -> Served:
    """What the engine of the test's variant answered."""
    return running[variant].result()


@pytest.fixture
def plain(running: Mapping[Variant, Future[Served]]) -> Served:
    """What the engine answered that does not speculate, and to which no abort was sent."""
    return running[PLAIN].result()
