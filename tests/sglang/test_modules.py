"""Drafts with a module for each step (MULTI_LAYER_EAGLE) in SGLang, on a CPU: its texts, and as much accepted."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from sglang_chained import write_chained
from sglang_family import Family, FamilyTests, Running, in_float32
from sglang_files import NEWEST, VERSION
from sglang_mixed import GRAMMARS, Oracle, mixed
from sglang_modules import ALONE, WINDOW, write_modules
from sglang_programs import build_program
from sglang_server import THROWN_OUT, Variant, accept_length, greedy, serve
from sglang_workload import without_aborts, workload

FEW, MANY = 12, 200
POOLS = {"EAGLE": ["SWAKVPool", "SWAKVPool"]}
SECOND = {"swa_full_tokens_ratio": 0.5}
MODULES = Variant("EAGLE", "modules", target="modules", program=True)
SHARED = Family(
    Variant(target="modules"),
    [replace(MODULES, overlap=True), replace(MODULES, num_steps=2, num_draft_tokens=3)],
    lambda folder: write_modules(folder, "modules"),
    lambda _: workload(MANY, seed=3),
    arguments=SECOND,
    pools=POOLS,
    accepted=1.3,
)
"""Modules of MiMo-V2's kind, which all read the target's hidden states, with fewer steps than there are modules, too.
The second KV pool has fewer slots than a long prompt has tokens, and some requests are aborted."""

CHAINED = Family(
    Variant(target="chained", attention="fa3"),
    [replace(MODULES, draft="chained", target="chained", attention="fa3", page=16, overlap=True)],
    lambda folder: write_chained(folder / "chained"),
    lambda _: without_aborts(workload(FEW, seed=3, bursts=1)),
    pools=POOLS,
    accepted=1.3,
)
"""Modules of Step-3.5's kind, each of which reads what the one before it made, under FlashAttention 3."""

FAMILIES = (SHARED, CHAINED) if VERSION == NEWEST else (CHAINED,)
newest = pytest.mark.skipif(VERSION != NEWEST, reason="0.5.22 reads slots of one pool in the other on intel_amx")
PROGRAMS = [(family, program) for family in FAMILIES for program in family.programs]
OWN = [(family, program, family.own_of(program)) for family, program in PROGRAMS]
each_program = pytest.mark.parametrize(("family", "engine"), PROGRAMS, ids=str)


@newest
@in_float32
@pytest.mark.parametrize("family", [SHARED], ids=str)
def test_without_speculation_texts_are_the_targets_own(family: Family, engines: Running) -> None:
    """Against transformers, every third one."""
    alone = engines.of(family.alone)
    oracle = Oracle(engines.models / f"{family.alone.target}-{ALONE}")
    for number, request, output in list(greedy(alone))[::3]:
        assert oracle.follows(request["text"], output["token_ids"]), number
    assert max(output["prompt_tokens"] for output in alone.outputs) > 10 * WINDOW


class TestModules(FamilyTests):
    """Accepted lengths also where a step of SGLang's own stood between."""

    compared, beside = PROGRAMS, OWN


@each_program
def test_the_program_ran_the_steps_that_it_serves(family: Family, engine: Variant, engines: Running) -> None:
    """After a dry step, and SGLang those with a request that the program does not serve, in the same server."""
    state = engines.of(engine).state
    assert state["specc"]["served"] > 100
    assert state["specc"]["proof"] == "passed"
    assert state["specc"]["left"].keys() <= family.left
    assert state["specc_testing"]["pools"] == family.pools["EAGLE"]


@newest
@pytest.mark.parametrize(("family", "engine"), [(SHARED, program) for program in SHARED.programs], ids=str)
def test_requests_are_aborted_and_thrown_out(family: Family, engine: Variant, engines: Running) -> None:
    outputs = engines.of(engine).outputs
    assert sum(output["finish_reason"]["type"] == "abort" for output in outputs) > 5
    assert sum(output["num_retractions"] for output in outputs) > 8


DRAWN = replace(MODULES, overlap=True, samples=True)


@newest
@in_float32
def test_texts_that_are_drawn_are_those_of_their_seeds(tmp_path: Path) -> None:
    """Of requests of all kinds, token for token as plain Python draws from transformers' scores."""
    write_modules(tmp_path / "models", DRAWN.target)
    engine = DRAWN.engine(tmp_path / "models") | SECOND | GRAMMARS
    wheel = build_program(engine, tmp_path / "wheel", *DRAWN.options)
    requests = mixed(random.Random(1))
    served = serve(engine, requests, tmp_path / "job", overlap=True, wheel=wheel, settings=THROWN_OUT)
    assert served.state["specc"]["left"] == {}
    assert served.state["specc"]["served"] > 50
    oracle = Oracle(tmp_path / "models" / f"{DRAWN.target}-{ALONE}")
    for number, (request, output) in enumerate(zip(requests, served.outputs, strict=True)):
        assert oracle.expected(request, output["token_ids"]) == output["token_ids"], number
    assert accept_length(served) > 1.1
