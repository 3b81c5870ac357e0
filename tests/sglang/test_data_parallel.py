"""Programs where attention is data parallel: groups of ranks with requests of their own, whose steps are the same.

Streams of requests have silences, in which a group runs steps on rows of padding for the sake of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from engine_fixtures import side_by_side
from sglang_expert_head import write_expert_head
from sglang_family import Family, Running, all_accounted_for, same_texts, start
from sglang_files import NEWEST, VERSION
from sglang_latent import write_latent
from sglang_server import Served, Variant, accept_length
from sglang_workload import with_silences

REQUESTS, FEWER = 200, 60
HEAD = Variant("EAGLE3", "sorter-eagle3", target="sorter", program=True, ranks=2, groups=2, overlap=True)
HEAD_TREE = replace(HEAD, topk=3, num_draft_tokens=8, samples=True, overlap=False, ranks=4, local_head=True)
HEADS = Family(
    Variant(target="sorter"),
    [HEAD, HEAD_TREE, replace(HEAD, ranks=4, groups=4, overlap=False)],
    write_expert_head,
    lambda _: with_silences(REQUESTS, seed=11),
    left=frozenset({"logprobs", "sampling", "requests of another rank"}),
    accepted=1.6,
)
"""A mixture of experts and a head, which each group runs by itself. Two ranks of a group share out the rest."""

MODULE = Variant("EAGLE", "latent", target="latent", attention="fa3", program=True, ranks=2, groups=2, overlap=True)
MODULES = Family(
    Variant(target="latent", attention="fa3"),
    [MODULE, replace(MODULE, local_head=True)],
    lambda folder: write_latent(folder / "latent"),
    lambda _: with_silences(FEWER, seed=12),
    left=HEADS.left,
)
"""Latent attention, and a module of multi-token prediction whose forwards exchange rows as those of the target do."""

FAMILIES = {str(family): family for family in (HEADS, MODULES)}
PROGRAMS = [(family, program) for family in FAMILIES.values() for program in family.programs]
OWN = [(family, family.programs[0], family.own_of(family.programs[0])) for family in FAMILIES.values()]
each_program = pytest.mark.parametrize(("family", "engine"), PROGRAMS, ids=str)
pytestmark = pytest.mark.skipif(VERSION != NEWEST, reason="0.5.22 has the group of a draft's ranks in another form")


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Running]]:
    """What the engines of both families answered, two at a time."""
    with side_by_side(2) as pool:
        yield {
            name: start(family, pool, request.session, *(tmp_path_factory.mktemp(f"{name}-{what}") for what in "mj"))
            for name, family in FAMILIES.items()
        }


@pytest.fixture
def engines(family: Family, running: dict[str, Running]) -> Running:
    """What the engines of the test's family answered."""
    return running[str(family)]


def groups_of(served: Served) -> list[Mapping[str, Any]]:
    """What `specc_testing` has of each group."""
    return [*served.state["groups"].values()]


@each_program
def test_texts_are_those_without_speculation(family: Family, engine: Variant, engines: Running) -> None:
    """On whichever rank a request was, whoever was thrown out or left; nothing of its memory is lost."""
    served = engines.of(engine)
    same_texts(served, engines.of(family.alone))
    for group in groups_of(served):
        all_accounted_for(group)
    assert sum(output["finish_reason"]["type"] == "abort" for output in served.outputs) > 1
    assert accept_length(served) > family.accepted


@each_program
def test_all_ranks_run_the_same_steps(family: Family, engine: Variant, engines: Running) -> None:
    """A step is the program's on all of them or on none, and some rank had no request while others had."""
    served = engines.of(engine)
    groups = groups_of(served)
    assert len(groups) == engine.groups
    ranks = [rank for group in groups for rank in group["ranks"]]
    assert len(ranks) == engine.ranks
    for rank in ranks:
        assert rank["specc"]["proof"] == "passed"
        assert rank["specc"]["served"] == ranks[0]["specc"]["served"] > 50
        assert rank["specc"]["left"].keys() <= family.left
    assert max(rank["specc"]["idle"] for rank in ranks) > 10
    reasons = [rank["specc"]["left"] for rank in ranks]
    assert all("sampling" not in left for left in reasons) == engine.samples
    assert any("requests of another rank" in left for left in reasons) != engine.samples


@each_program
def test_ranks_of_a_group_emit_the_same_tokens(family: Family, engine: Variant, engines: Running) -> None:
    """Those that were answered, and a request is of one group alone."""
    served = engines.of(engine)
    emitted: dict[str, list[int]] = {}
    for group in groups_of(served):
        tokens = group["ranks"][0]["tokens"]
        assert all(rank["tokens"] == tokens for rank in group["ranks"])
        assert emitted.keys().isdisjoint(tokens)
        assert len(tokens) > len(served.requests) / engine.groups / 2
        emitted |= tokens
    for number, output in enumerate(served.outputs):
        assert emitted[f"{number:06}"][: len(output["token_ids"])] == output["token_ids"], number


@pytest.mark.parametrize(("family", "engine", "own"), OWN, ids=str)
def test_the_program_accepts_as_much_as_sglangs_own_step(
    family: Family, engine: Variant, own: Variant, engines: Running
) -> None:
    """Which is that of one rank."""
    assert accept_length(engines.of(engine)) == pytest.approx(accept_length(engines.of(own)), rel=0.03)
