"""Latent attention (MLA) under FlashAttention 3, where a module of multi-token prediction drafts chains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from engine_fixtures import asked, side_by_side, started
from sglang_latent import write_latent
from sglang_mixed import Oracle
from sglang_programs import build_program
from sglang_server import Served, Variant, accept_length, greedy, serve
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
    folder = tmp_path_factory.mktemp("jobs")
    requests = without_aborts(workload(REQUESTS, seed=2))

    def run(variant: Variant) -> Served:
        engine = variant.engine(models)
        wheel = build_program(engine, folder / f"{variant}-wheel") if variant.program else None
        return serve(engine, requests, folder / f"{variant}-job", overlap=variant.overlap, wheel=wheel)

    with side_by_side(2) as pool:
        yield started(pool, [ALONE, *asked(request.session, "latent", "latent_own")], run)


def test_without_speculation_texts_are_the_targets_own(models: Path, engines: Mapping[Variant, Future[Served]]) -> None:
    """Against transformers, every third one: so the stand-ins of FlashAttention are right about latent rows."""
    oracle, answers = Oracle(models / ALONE.target), list(greedy(engines[ALONE].result()))
    for number, request, output in answers[::3]:
        assert oracle.follows(request["text"], output["token_ids"]), number


@pytest.mark.parametrize("latent", [OWN, *PROGRAMS], ids=str)
def test_texts_are_those_without_speculation(latent: Variant, engines: Mapping[Variant, Future[Served]]) -> None:
    alone, served = engines[ALONE].result(), engines[latent].result()
    for number, _, output in greedy(served):
        for key in ("token_ids", "finish_reason"):
            assert output[key] == alone.outputs[number][key], (number, key)
    assert accept_length(served) > LEAST_ACCEPTED
    assert sum(output["num_retractions"] for output in served.outputs) > 0


@pytest.mark.parametrize("latent", PROGRAMS, ids=str)
def test_the_program_ran_the_steps_that_it_serves(latent: Variant, engines: Mapping[Variant, Future[Served]]) -> None:
    served = engines[latent].result()
    state, seen = served.state["specc"], served.state["specc_testing"]
    assert state["served"] > 30
    assert set(state["left"]) <= {"logprobs", "sampling"}
    assert seen["prepared"]["TARGET_VERIFY"] == sum(state["left"].values()) > 0
    assert seen["pools"] == ["MLATokenToKVPool", "MLATokenToKVPool"]


@pytest.mark.parametrize(("latent", "latent_own"), [(program, OWN) for program in PROGRAMS], ids=map(str, PROGRAMS))
def test_the_program_accepts_as_much_as_sglangs_own_step(
    latent: Variant, latent_own: Variant, engines: Mapping[Variant, Future[Served]]
) -> None:
    accepted, own = (accept_length(engines[variant].result()) for variant in (latent, latent_own))
    assert accepted == pytest.approx(own, rel=0.03)
