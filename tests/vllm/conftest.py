"""Engines of vLLM, one per variant; each serves the same requests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest
from engine_fixtures import asked, mark, served, side_by_side, started
from transformers import AutoTokenizer
from vllm_files import ENVIRONMENT, HERE, ON_GPU
from vllm_models import write_models
from vllm_programs import build_program, same_program, settings
from vllm_server import Served, Variant, serve
from vllm_workload import without_aborts, workloads

__all__ = ["served"]
SEEDS = range(4, 4 + int(os.environ.get("SPECC_TEST_WORKLOADS", "3" if ON_GPU else "1")))
AT_A_TIME = 14 if ON_GPU else 2
"""Engines, which share the GPU, and take a processor each to start."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They need vLLM."""
    mark(config, items, HERE, ENVIRONMENT)


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
    """Start all engines that the tests ask for, those without speculation, and vLLM's own steps beside programs'."""
    wanted = asked(request.session.items, "variant")
    variants = [*(variant.plain for variant in wanted), *wanted, *(variant.own for variant in wanted)]
    folder, requests = tmp_path_factory.mktemp("jobs"), workloads(tokenizer(models), SEEDS)

    def build(variant: Variant) -> Path:
        return build_program(variant, models, folder / f"{variant}-wheel")

    def run(variant: Variant) -> Served:
        given = without_aborts(requests) if variant == variant.plain else requests
        wheel = wheels[same_program(variant)].result() if variant.program else None
        where = folder / str(variant)
        more = {"canaries": variant.canaries, "drafts": () if variant.shape else variant.shapes}
        return serve(variant.engine(models), given, where, wheel=wheel, settings=settings(variant, models), **more)

    with side_by_side(AT_A_TIME) as pool:
        wheels = started(pool, (same_program(variant) for variant in variants if variant.program), build)
        yield started(pool, variants, run)


@pytest.fixture
def plain(variant: Variant, running: Mapping[Variant, Future[Served]]) -> Served:
    """Return what the target of the test's variant answered without speculation; no abort was sent to it."""
    return running[variant.plain].result()


def tokenizer(models: Path):
    """What makes token ids of a text."""
    made = AutoTokenizer.from_pretrained(models / "target")
    return lambda text: made(text).input_ids
