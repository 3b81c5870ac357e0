"""Targets of gpt-oss's kind, whose windows have a KV pool of their own, with a head and with a draft of their kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from sglang_family import Family, all_accounted_for, own, same_texts
from sglang_files import NEWEST, VERSION
from sglang_mixed import Oracle
from sglang_server import Served, Variant, accept_length, greedy
from sglang_sinks import WINDOW, write_sinks
from sglang_workload import behind_the_first, workload

ALONE = Variant(target="oss", attention="" if VERSION == NEWEST else "fa3")
"""0.5.22 reads slots of the first pool in the second on a CPU's own backend."""
HEAD = Variant("EAGLE3", "oss-eagle3", target="oss", program=True)
DRAFT = Variant("STANDALONE", "small-oss", target="oss", program=True, attention="fa3")
FLASH = [replace(DRAFT, overlap=True), replace(HEAD, overlap=True, attention="fa3", page=16)]
PROGRAMS = [replace(HEAD, overlap=True), *FLASH] if VERSION == NEWEST else FLASH
REQUESTS = 200
LEAST_ACCEPTED = 1.4
SCARCE = {"swa_full_tokens_ratio": 0.5}
"""The second pool has so many slots for each of the first: fewer than a long prompt has tokens."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the models."""
    folder = tmp_path_factory.mktemp("two-pools")
    write_sinks(folder)
    return folder


@pytest.fixture(scope="module")
def engines(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Variant, Future[Served]]]:
    """The engine without speculation, and those that tests of this run ask for."""
    requests = behind_the_first(workload(REQUESTS, seed=5))
    with Family(ALONE, models, requests, SCARCE).running(request.session, tmp_path_factory.mktemp("jobs")) as running:
        yield running


def test_without_speculation_texts_are_the_targets_own(models: Path, engines: Mapping[Variant, Future[Served]]) -> None:
    """Against transformers, every third one, of texts far longer than a window, and than the second pool."""
    oracle, alone = Oracle(models / ALONE.target), engines[ALONE].result()
    for number, request, output in [*greedy(alone)][::3]:
        assert oracle.follows(request["text"], output["token_ids"]), number
    _, second = alone.state["specc_testing"]["slots"]
    assert max(output["prompt_tokens"] for output in alone.outputs) > max(second["all"], 10 * WINDOW)


@pytest.mark.parametrize("engine", PROGRAMS, ids=str)
def test_texts_are_those_without_speculation(engine: Variant, engines: Mapping[Variant, Future[Served]]) -> None:
    """Some requests are aborted, and some thrown out; slots of both pools are all there at the end."""
    served = engines[engine].result()
    same_texts(served, engines[ALONE].result())
    all_accounted_for(served.state["specc_testing"])
    assert sum(output["finish_reason"]["type"] == "abort" for output in served.outputs) > 5
    assert accept_length(served) > LEAST_ACCEPTED


@pytest.mark.parametrize("engine", PROGRAMS, ids=str)
def test_the_program_ran_the_steps_that_it_serves(engine: Variant, engines: Mapping[Variant, Future[Served]]) -> None:
    """Under fa3 SGLang prepared attention for those that were left to it alone."""
    served = engines[engine].result()
    state, seen = served.state["specc"], served.state["specc_testing"]
    assert state["served"] > 100
    assert state["proof"] == "passed"
    assert set(state["left"]) <= {"logprobs", "sampling"}
    if engine.attention == "fa3":
        assert seen["prepared"]["TARGET_VERIFY"] == sum(state["left"].values()) > 0
    of_draft = "SWAKVPool" if engine.algorithm == "STANDALONE" else "MHATokenToKVPool"
    assert seen["pools"] == ["SWAKVPool", of_draft]


@pytest.mark.parametrize(("engine", "own"), [(program, own(program)) for program in PROGRAMS], ids=map(str, PROGRAMS))
def test_the_program_accepts_as_much_as_sglangs_own_step(
    engine: Variant, own: Variant, engines: Mapping[Variant, Future[Served]]
) -> None:
    length, own_length = (accept_length(engines[one].result()) for one in (engine, own))
    assert length == pytest.approx(own_length, rel=0.03)
