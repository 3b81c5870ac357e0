"""Engines of vLLM, one per variant; each serves the same requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest
from engine_fixtures import asked, mark, plain, served, started
from transformers import AutoTokenizer
from vllm_files import ENVIRONMENT, HERE
from vllm_models import write_models
from vllm_programs import build_program
from vllm_server import PLAIN, Served, Variant, serve
from vllm_workload import without_aborts, workload

__all__ = ["plain", "served"]
SEED = 4


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
    """All engines that the tests of this run ask for, and those of vLLM's own steps beside programs'."""
    folder, requests = tmp_path_factory.mktemp("jobs"), workload(tokenizer(models), SEED)

    def run(variant: Variant) -> Served:
        given = without_aborts(requests) if variant == PLAIN else requests
        wheel = build_program(variant, models, folder / f"{variant}-wheel") if variant.program else None
        return serve(variant.engine(models), given, folder / str(variant), wheel=wheel)

    variants = asked(request.session, Variant)
    with started([PLAIN, *variants, *(variant.own for variant in variants)], run) as engines:
        yield engines


def tokenizer(models: Path):
    """What makes token ids of a text."""
    made = AutoTokenizer.from_pretrained(models / "target")
    return lambda text: made(text).input_ids
