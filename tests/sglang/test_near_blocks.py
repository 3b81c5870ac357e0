"""Drafts of blocks that see windows, of classes of their own, over targets whose windows have a second KV pool."""

from __future__ import annotations

from dataclasses import replace

import pytest
from near_blocks import NEAR, WINDOW, write_laguna, write_muse
from sglang_family import Family, FamilyTests, Running
from sglang_files import NEWEST, ON_GPU, RANKS, VERSION
from sglang_server import Variant
from sglang_workload import workload

pytestmark = pytest.mark.skipif(VERSION != NEWEST, reason="older ones have not run")
REQUESTS = 40
POOLS = {"DFLASH": ["SWAKVPool", "MHATokenToKVPool"]}
HALF = {"swa_full_tokens_ratio": 0.5}
"""The second pool of the target has half the slots of the first."""
LAGUNA, MUSE = (Variant("DFLASH", f"{name}-blocks", target=name, program=True) for name in ("laguna", "muse"))
FAMILIES = (
    Family(
        Variant(target="laguna"),
        [
            replace(LAGUNA, overlap=True),
            replace(LAGUNA, samples=True, attention="fa3"),
            *[replace(LAGUNA, ranks=2)] * (RANKS > 1),
        ],
        write_laguna,
        lambda _: workload(REQUESTS, seed=8),
        arguments=HALF,
        pools=POOLS,
        accepted=1.2,
    ),
    Family(
        Variant(target="muse"),
        [replace(MUSE, overlap=True, samples=True), replace(MUSE, attention="fa3", page=16)],
        write_muse,
        lambda _: workload(REQUESTS, seed=9),
        arguments=HALF,
        pools=POOLS,
        accepted=1.3,
    ),
)
"""Places of Laguna's draft see those before them alone, places of Muse-Glimmer's all of a block."""
PROGRAMS = [(family, program) for family in FAMILIES for program in family.programs]
OWN = [(family, program, family.own_of(program)) for family, program in PROGRAMS]


class TestFamilies(FamilyTests):
    compared, beside = PROGRAMS, OWN


@pytest.mark.parametrize(("family", "engine"), PROGRAMS, ids=str)
def test_the_program_ran_the_steps_that_it_serves(family: Family, engine: Variant, engines: Running) -> None:
    """On every rank; under fa3 SGLang prepared attention for the others alone, for a block and for a verification."""
    seen = engines.of(engine).state["specc_testing"]
    assert len(seen["ranks"]) == engine.ranks
    for rank in seen["ranks"]:
        assert rank["specc"]["proof"] == "passed"
        assert rank["specc"]["served"] > 60
        assert rank["specc"]["left"].keys() <= (set() if engine.samples else family.left)
        assert rank["tokens"] == seen["ranks"][0]["tokens"]
    if engine.attention == "fa3" and not ON_GPU:
        left = sum(seen["ranks"][0]["specc"]["left"].values())
        assert seen["prepared"].get("TARGET_VERIFY", 0) == 3 * left
    assert seen["pools"] == family.pools[engine.algorithm]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_texts_are_far_longer_than_windows(family: Family, engines: Running) -> None:
    longest = max(output["prompt_tokens"] for output in engines.of(family.alone).outputs)
    assert longest > 5 * max(WINDOW, NEAR)
