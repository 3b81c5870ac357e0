"""A target that sees pictures, and a draft that does: texts behind pictures, and without any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace

import pytest
from sglang_family import Family, all_accounted_for, own, same_texts
from sglang_server import Served, Variant, accept_length
from sglang_vision import with_pictures, write_vision
from sglang_workload import without_aborts, workload

ALONE = Variant(target="seer")
CHAIN = Variant("STANDALONE", "guesser", target="seer", program=True, samples=True)
"""Nothing is left to SGLang: its own step, run ahead, ends the server where a draft sees pictures."""
PROGRAMS = [replace(CHAIN, overlap=True), replace(CHAIN, topk=3, num_draft_tokens=8)]
REQUESTS = 60
WHOLE = {"chunked_prefill_size": 512}
"""SGLang's own prefill of a draft ends the server where a picture is in two chunks."""
LEAST_ACCEPTED = 1.5


@pytest.fixture(scope="module")
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Variant, Future[Served]]]:
    """The engine without speculation, and those that tests of this run ask for."""
    models = tmp_path_factory.mktemp("vision")
    write_vision(models)
    requests = with_pictures(without_aborts(workload(REQUESTS, seed=3)), models)
    with Family(ALONE, models, requests, WHOLE).running(request.session, tmp_path_factory.mktemp("jobs")) as running:
        yield running


@pytest.mark.parametrize("engine", PROGRAMS, ids=str)
def test_texts_are_those_without_speculation(engine: Variant, engines: Mapping[Variant, Future[Served]]) -> None:
    served = engines[engine].result()
    same_texts(served, engines[ALONE].result())
    all_accounted_for(served.state["specc_testing"])
    assert accept_length(served) > LEAST_ACCEPTED


@pytest.mark.parametrize("engine", PROGRAMS, ids=str)
def test_the_program_ran_the_steps_that_it_serves(engine: Variant, engines: Mapping[Variant, Future[Served]]) -> None:
    served = engines[engine].result()
    state = served.state["specc"]
    assert state["served"] > 30
    assert state["left"] == {}
    pictured = [
        output for request, output in zip(served.requests, served.outputs, strict=True) if "pictures" in request
    ]
    assert sum(output["completion_tokens"] for output in pictured) > 300


@pytest.mark.parametrize(("engine", "own"), [(program, own(program)) for program in PROGRAMS], ids=map(str, PROGRAMS))
def test_the_program_accepts_as_much_as_sglangs_own_step(
    engine: Variant, own: Variant, engines: Mapping[Variant, Future[Served]]
) -> None:
    length, own_length = (accept_length(engines[one].result()) for one in (engine, own))
    assert length == pytest.approx(own_length, rel=0.03)
