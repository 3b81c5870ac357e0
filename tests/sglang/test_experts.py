"""A target and a draft whose tokens go to experts, which requests are told: on one rank, and shared out over two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace

import pytest
from sglang_experts import experts_of, write_experts
from sglang_family import Family, all_accounted_for, own, same_texts
from sglang_server import Served, Variant, accept_length, greedy
from sglang_workload import behind_the_first, without_aborts, workload

ALONE = Variant(target="sorter")
CHAIN = Variant("STANDALONE", "guesser", target="sorter", program=True)
TREE = replace(CHAIN, topk=3, num_draft_tokens=8)
SHARED_OUT = [replace(CHAIN, overlap=True, ranks=2, experts=True), replace(TREE, ranks=2, experts=True)]
PROGRAMS = [replace(CHAIN, samples=True), replace(TREE, overlap=True), *SHARED_OUT]
REQUESTS = 60
LEAST_ACCEPTED = 1.5
PADDED = {"SPECC_TEST_PAD": "1"}
"""Every step of a program has rows of padding, which go to no expert."""
RETURNED = {"enable_return_routed_experts": True}


@pytest.fixture(scope="module")
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Variant, Future[Served]]]:
    """The engine without speculation, and those that tests of this run ask for."""
    models = tmp_path_factory.mktemp("experts")
    write_experts(models)
    requests = [one | {"experts": True} for one in behind_the_first(without_aborts(workload(REQUESTS, seed=6)))]
    family = Family(ALONE, models, requests, RETURNED, PADDED)
    with family.running(request.session, tmp_path_factory.mktemp("jobs")) as running:
        yield running


@pytest.mark.parametrize("engine", PROGRAMS, ids=str)
def test_texts_are_those_without_speculation(engine: Variant, engines: Mapping[Variant, Future[Served]]) -> None:
    served = engines[engine].result()
    same_texts(served, engines[ALONE].result())
    all_accounted_for(served.state["specc_testing"])
    assert accept_length(served) > LEAST_ACCEPTED


@pytest.mark.parametrize("engine", PROGRAMS, ids=str)
def test_the_program_ran_the_steps_that_it_serves(engine: Variant, engines: Mapping[Variant, Future[Served]]) -> None:
    """On every rank as many, with the same tokens."""
    ranks = engines[engine].result().state["specc_testing"]["ranks"]
    assert len(ranks) == engine.ranks
    for rank in ranks:
        assert rank["specc"]["served"] > 30
        assert set(rank["specc"]["left"]) <= {"logprobs", "sampling"}
        assert rank["tokens"] == ranks[0]["tokens"]
        assert rank["specc"] == ranks[0]["specc"]


@pytest.mark.parametrize(("engine", "own"), [(program, own(program)) for program in PROGRAMS], ids=map(str, PROGRAMS))
def test_the_program_accepts_as_much_as_sglangs_own_step(
    engine: Variant, own: Variant, engines: Mapping[Variant, Future[Served]]
) -> None:
    length, own_length = (accept_length(engines[one].result()) for one in (engine, own))
    assert length == pytest.approx(own_length, rel=0.03)


@pytest.mark.parametrize("engine", PROGRAMS, ids=str)
def test_experts_are_those_without_speculation(engine: Variant, engines: Mapping[Variant, Future[Served]]) -> None:
    """Of every token, of steps that were left to SGLang, too."""
    served, alone = engines[engine].result(), engines[ALONE].result()
    compared = 0
    for number, _, output in greedy(served):
        experts, expected = experts_of(output), experts_of(alone.outputs[number])
        assert len(experts) == output["prompt_tokens"] + output["completion_tokens"] - 1
        assert experts == expected, number
        compared += output["completion_tokens"]
    assert compared > 1000
