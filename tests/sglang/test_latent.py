"""Latent attention (MLA) under FlashAttention 3, where a module of multi-token prediction drafts chains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from sglang_family import Family, all_accounted_for, same_texts
from sglang_latent import write_latent
from sglang_mixed import Oracle
from sglang_server import Served, Variant, accept_length, greedy
from sglang_workload import without_aborts, workload

ALONE = Variant(target="latent", attention="fa3")
OWN = Variant("EAGLE", "latent", target="latent", attention="fa3")
PROGRAMS = [replace(OWN, program=True, overlap=True), replace(OWN, program=True, page=16)]
REQUESTS = 60
LEAST_ACCEPTED = 1.5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the model."""
    folder = tmp_path_factory.mktemp("latent")
    write_latent(folder / ALONE.target)
    return folder


@pytest.fixture(scope="module")
def engines(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Variant, Future[Served]]]:
    """The engine without speculation, and those that tests of this run ask for."""
    requests = without_aborts(workload(REQUESTS, seed=2))
    with Family(ALONE, models, requests, {}).running(request.session, tmp_path_factory.mktemp("jobs")) as running:
        yield running


def test_without_speculation_texts_are_the_targets_own(models: Path, engines: Mapping[Variant, Future[Served]]) -> None:
    """Against transformers, every third one: so the stand-ins of FlashAttention are right about latent rows."""
    oracle, answers = Oracle(models / ALONE.target), list(greedy(engines[ALONE].result()))
    for number, request, output in answers[::3]:
        assert oracle.follows(request["text"], output["token_ids"]), number


@pytest.mark.parametrize("engine", [OWN, *PROGRAMS], ids=str)
def test_texts_are_those_without_speculation(engine: Variant, engines: Mapping[Variant, Future[Served]]) -> None:
    served = engines[engine].result()
    same_texts(served, engines[ALONE].result())
    all_accounted_for(served.state["specc_testing"])
    assert accept_length(served) > LEAST_ACCEPTED


@pytest.mark.parametrize("engine", PROGRAMS, ids=str)
def test_the_program_ran_the_steps_that_it_serves(engine: Variant, engines: Mapping[Variant, Future[Served]]) -> None:
    served = engines[engine].result()
    state, seen = served.state["specc"], served.state["specc_testing"]
    assert state["served"] > 30
    assert set(state["left"]) <= {"logprobs", "sampling"}
    assert seen["prepared"]["TARGET_VERIFY"] == sum(state["left"].values()) > 0
    assert seen["pools"] == ["MLATokenToKVPool", "MLATokenToKVPool"]


@pytest.mark.parametrize(("engine", "own"), [(program, OWN) for program in PROGRAMS], ids=map(str, PROGRAMS))
def test_the_program_accepts_as_much_as_sglangs_own_step(
    engine: Variant, own: Variant, engines: Mapping[Variant, Future[Served]]
) -> None:
    length, own_length = (accept_length(engines[one].result()) for one in (engine, own))
    assert length == pytest.approx(own_length, rel=0.03)
