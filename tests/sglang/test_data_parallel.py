"""Programs where attention is data parallel: groups of ranks with requests of their own, whose steps are the same.

Streams of requests have silences, in which a group runs steps on rows of padding for the sake of another.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from sglang_expert_head import write_expert_head
from sglang_family import Family, FamilyTests, Running, groups_of
from sglang_files import NEWEST, ON_GPU, RANKS, VERSION
from sglang_latent import write_latent
from sglang_modules import write_modules
from sglang_server import Variant
from sglang_workload import with_silences

REQUESTS, FEWER = 200, 60
SECOND = {"swa_full_tokens_ratio": 0.5}
HEAD = Variant("EAGLE3", "sorter-eagle3", target="sorter", program=True, ranks=2, groups=2, overlap=True)
HEAD_TREE = replace(HEAD, topk=3, num_draft_tokens=8, samples=True, overlap=False, ranks=4, local_head=True)
HEADS = Family(
    Variant(target="sorter"),
    [HEAD, HEAD_TREE, replace(HEAD, ranks=4, groups=4, overlap=False, experts=True)],
    write_expert_head,
    lambda _: with_silences(REQUESTS, seed=11),
    left=frozenset({"logprobs", "sampling", "requests of another rank"}),
    accepted=1.6,
)
"""A mixture of experts and a head, which each group runs by itself. Two ranks of a group share out the rest, and where
each rank has its part of the experts they get rows of all groups."""

MODULE = Variant("EAGLE", "latent", target="latent", attention="fa3", program=True, ranks=2, groups=2, overlap=True)
MODULES = Family(
    Variant(target="latent", attention="fa3"),
    [MODULE, replace(MODULE, local_head=True, experts=True)],
    lambda folder: write_latent(folder / "latent"),
    lambda _: with_silences(FEWER, seed=12),
    left=HEADS.left,
)
"""Latent attention, and a module of multi-token prediction whose forwards exchange rows as those of the target do."""

EACH = Variant("EAGLE", "modules", target="modules", program=True, samples=True, ranks=2, groups=2, overlap=True)
SEVERAL = Family(
    Variant(target="modules"),
    [EACH, replace(EACH, local_head=True, overlap=False, ranks=4, num_steps=2, num_draft_tokens=3)],
    lambda folder: write_modules(folder, "modules"),
    lambda _: with_silences(FEWER, seed=13),
    arguments=SECOND,
    accepted=1.3,
)
"""A module for each step (MULTI_LAYER_EAGLE), which exchange rows one after the other, with windows in a second pool.
Programs serve all requests: SGLang's own step ends where it is not captured, when groups have unlike many requests."""

FAMILIES = (HEADS, SEVERAL, *[MODULES] * (not ON_GPU))
"""Kernels of a GPU have no latent rows so narrow."""
PROGRAMS = [(family, program) for family in FAMILIES for program in family.programs if program.ranks <= RANKS]
OWN = [(family, program, family.own_of(program)) for family, program in PROGRAMS if program is family.programs[0]]
each_program = pytest.mark.parametrize(("family", "engine"), PROGRAMS, ids=str)
pytestmark = pytest.mark.skipif(VERSION != NEWEST, reason="0.5.22 has the group of a draft's ranks in another form")


class TestDataParallel(FamilyTests):
    """On whichever rank a request was, whoever was thrown out or left; SGLang's own step is that of one rank."""

    compared, beside = PROGRAMS, OWN


@each_program
def test_some_requests_are_aborted(family: Family, engine: Variant, engines: Running) -> None:
    assert sum(output["finish_reason"]["type"] == "abort" for output in engines.of(engine).outputs) > 1


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
    assert max(rank["specc"]["idle"] for rank in ranks) > 5  # more where the host is slow
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
