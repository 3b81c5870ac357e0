"""Engines of vLLM, one per variant, some at a time; each serves the same requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import AutoTokenizer
from vllm_files import HERE, ON_GPU, READY
from vllm_models import write_models
from vllm_programs import build_program, same_program
from vllm_server import PLAIN, Served, Variant, serve
from vllm_workload import without_aborts, workloads

SEEDS = (4, 5, 6) if ON_GPU else (4,)
AT_A_TIME = 11 if ON_GPU else 2
"""Engines, which share the GPU, and take a processor each to start."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark everything in this folder, and skip it unless it is asked for."""
    asked = "vllm" in config.getoption("markexpr")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if not asked or not READY.exists():
                item.add_marker(pytest.mark.skip(reason="needs vLLM's environment: run `make vllm`"))


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
    """All engines that the tests of this run ask for, started some at a time."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    asked = [given["variant"] for given in params if "variant" in given]
    variants = dict.fromkeys([PLAIN, *asked, *(variant.own for variant in asked)])
    folder, requests = tmp_path_factory.mktemp("jobs"), workloads(tokenizer(models), SEEDS)
    pool = ThreadPoolExecutor(AT_A_TIME)
    needed = {same_program(variant) for variant in variants if variant.program}
    wheels = {one: pool.submit(build_program, one, models, folder / f"{one}-wheel") for one in needed}

    def run(variant: Variant) -> Served:
        given = without_aborts(requests) if variant == PLAIN else requests
        wheel = wheels[same_program(variant)].result() if variant.program else None
        settings = {"SPECC_CAPTURE": variant.capture} if variant.capture else {}
        where = folder / str(variant)
        return serve(variant.engine(models), given, where, wheel=wheel, settings=settings, canaries=variant.canaries)

    yield {variant: pool.submit(run, variant) for variant in variants}
    pool.shutdown(cancel_futures=True)


def tokenizer(models: Path):
    """What makes token ids of a text."""
    made = AutoTokenizer.from_pretrained(models / "target")
    return lambda text: made(text).input_ids


@pytest.fixture
def served(variant: Variant, running: Mapping[Variant, Future[Served]]) -> Served:
    """What the engine of the test's variant answered."""
    return running[variant].result()


@pytest.fixture
def plain(running: Mapping[Variant, Future[Served]]) -> Served:
    """What the engine answered that does not speculate, and to which no abort was sent."""
    return running[PLAIN].result()
