"""Engines of SGLang, one per variant; each serves the same requests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest
from engine_fixtures import asked, mark, plain, served, side_by_side, started
from sglang_blocks import write_blocks
from sglang_family import Family, FamilyTests, Running, start
from sglang_files import AT_A_TIME, ENVIRONMENT, HERE
from sglang_models import write_models
from sglang_programs import build_program
from sglang_server import PLAIN, THROWN_OUT, Served, Variant, serve
from sglang_workload import without_aborts, workload

__all__ = ["plain", "served"]
REQUESTS = int(os.environ.get("SPECC_TEST_REQUESTS", "200"))
"""Fewer are enough where texts alone are compared; other tests count on what happens to so many."""
SEED = 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They need SGLang."""
    mark(config, items, HERE, ENVIRONMENT)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Hand out to the tests of all families the engines of their file."""
    if metafunc.cls is not None and issubclass(metafunc.cls, FamilyTests):
        beside = "own" in metafunc.fixturenames
        engines = metafunc.cls.beside if beside else metafunc.cls.compared
        metafunc.parametrize(("family", "engine", "own") if beside else ("family", "engine"), engines, ids=str)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the models."""
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    write_blocks(folder)
    return folder


@pytest.fixture(scope="session")
def running(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Variant, Future[Served]]]:
    """All engines that the tests of this run ask for."""
    folder, requests = tmp_path_factory.mktemp("jobs"), workload(REQUESTS, SEED)

    def run(variant: Variant) -> Served:
        given = without_aborts(requests) if variant == PLAIN else requests
        engine = variant.engine(models)
        wheel = build_program(engine, folder / f"{variant}-wheel", *variant.options) if variant.program else None
        settings = {"SPECC_TEST_SHAPES": "1"} if variant.changes_to and not variant.adaptive else {}
        if variant.algorithm and not variant.draft:  # steps that hold so few slots that there are enough for most
            settings |= THROWN_OUT | {"SGLANG_TEST_RETRACT_INTERVAL": "24"}
        return serve(engine, given, folder / str(variant), overlap=variant.overlap, wheel=wheel, settings=settings)

    needed = [item for item in request.session.items if request.fixturename in getattr(item, "fixturenames", ())]
    with side_by_side(AT_A_TIME) as pool:
        yield started(pool, [PLAIN, *asked(needed, "variant", "own")], run)


@pytest.fixture(scope="module")
def families(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Running]]:
    """What the engines of each family of a file answered, some at a time of all."""
    here = [item for item in request.session.items if item.path == request.path]
    with side_by_side(AT_A_TIME) as pool:
        yield {
            name: start(family, pool, here, *(tmp_path_factory.mktemp(f"{name}-{what}") for what in "mj"))
            for name, family in {str(family): family for family in asked(here, "family")}.items()
        }


@pytest.fixture
def engines(family: Family, families: Mapping[str, Running]) -> Running:
    """What the engines of the test's family answered."""
    return families[str(family)]
