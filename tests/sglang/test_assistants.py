"""Programs in the place of SGLang's own assistants (FROZEN_KV_MTP), on a CPU: its texts, its drafts, nothing lost."""

from __future__ import annotations

from dataclasses import replace
from operator import eq

import pytest
from sglang_assistants import WINDOW, Drafter, write_assistants
from sglang_family import Family, FamilyTests, Running, in_16_bits, in_float32
from sglang_files import NEWEST, ON_GPU, VERSION
from sglang_mixed import Oracle
from sglang_server import Served, Variant, greedy
from sglang_workload import workload

REQUESTS = 200
TEXT = {"enable_multimodal": False}
"""SGLang would ask for what prepares pictures."""
BACKEND = "triton" if ON_GPU else ""
"""SGLang's default for these models on a GPU, where fa3 is refused."""
OWN = Variant("NEXTN", "even-assistant", target="even", overlap=True, attention=BACKEND)
ONE_POOL = Family(
    Variant(target="even", attention=BACKEND),
    [replace(OWN, program=True), replace(OWN, program=True, overlap=False)],
    write_assistants,
    lambda _: workload(REQUESTS, seed=5),
    own=OWN,
    arguments=TEXT | {"disable_hybrid_swa_memory": True},
)
"""Heads of one width, so that one KV pool has all layers: the only one over which SGLang's own step runs on a CPU."""
OWN_OF_TWO = replace(OWN, draft="assistant", target="gemma")
TWO_POOLS = Family(
    Variant(target="gemma", attention=BACKEND),
    [replace(OWN_OF_TWO, program=True, samples=True)],
    write_assistants,
    lambda _: workload(REQUESTS // 2, seed=5),
    own=OWN_OF_TWO,
    arguments=TEXT | {"swa_full_tokens_ratio": 0.5},
)
"""Layers with a window have narrower heads, in a pool of their own. Nothing is left to SGLang's own step, which reads
slots of the one pool in the other on a CPU; 0.5.22 does so without speculation, too."""
FAMILIES = (ONE_POOL, *[TWO_POOLS] * (VERSION == NEWEST))
PROGRAMS = [(family, program) for family in FAMILIES for program in family.programs]
COMPARED = [*PROGRAMS, (ONE_POOL, OWN)]
BESIDE_OWN = [(family, program, family.own_of(program)) for family, program in PROGRAMS if ON_GPU or family is ONE_POOL]
each_program = pytest.mark.parametrize(("family", "engine"), PROGRAMS, ids=str)


@in_float32
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_without_speculation_texts_are_the_targets_own(family: Family, engines: Running) -> None:
    """By transformers, every tenth one."""
    oracle = Oracle(engines.models / family.alone.target)
    for number, request, output in list(greedy(engines.of(family.alone)))[::10]:
        assert oracle.follows(request["text"], output["token_ids"]), number


class TestAssistants(FamilyTests):
    compared, beside = COMPARED, BESIDE_OWN

    @in_16_bits
    def test_the_program_accepts_as_much_as_sglangs_own_step(
        self, engine: Variant, own: Variant, engines: Running
    ) -> None:
        """In float32 every request takes as many steps."""
        super().test_the_program_accepts_as_much_as_sglangs_own_step(engine, own, engines)


@pytest.mark.parametrize(("family", "engine"), COMPARED, ids=str)
def test_prompts_are_long_and_some_requests_are_aborted(family: Family, engine: Variant, engines: Running) -> None:
    served = engines.of(engine)
    assert sum(output["finish_reason"]["type"] == "abort" for output in served.outputs) > 2
    assert max(output["prompt_tokens"] for output in served.outputs) > 10 * WINDOW


@each_program
def test_the_program_ran_the_steps_that_it_serves(family: Family, engine: Variant, engines: Running) -> None:
    state = engines.of(engine).state
    assert state["specc"]["proof"] == "passed"
    assert state["specc"]["served"] > 100
    assert state["specc_testing"]["overlap"] == engine.overlap
    assert state["specc"]["left"].keys() == (set() if engine.samples else family.left)
    assert state["specc_testing"]["pools"][0] == ("SWAKVPool" if family is TWO_POOLS else "MHATokenToKVPool")


def steps(served: Served) -> dict[int, int]:
    """How many steps each greedy request took that began once and went to its end."""
    return {
        number: output.get("spec_verify_ct", 0)
        for number, _, output in greedy(served)
        if not output["num_retractions"] and output["finish_reason"]["type"] != "abort"
    }


@in_float32
@pytest.mark.parametrize(("family", "engine"), [(ONE_POOL, program) for program in ONE_POOL.programs], ids=str)
def test_every_request_takes_as_many_steps_as_with_sglangs_own(
    family: Family, engine: Variant, engines: Running
) -> None:
    mine, own = steps(engines.of(engine)), steps(engines.of(OWN))
    compared = mine.keys() & own.keys()
    assert {number: mine[number] for number in compared} == {number: own[number] for number in compared}
    assert sum(mine[number] for number in compared) > 500


@in_float32
@pytest.mark.parametrize(("family", "engine"), [each for each in PROGRAMS if each[0] is TWO_POOLS], ids=str)
def test_steps_are_those_of_the_assistants_drafts(family: Family, engine: Variant, engines: Running) -> None:
    """By transformers' layers, of some requests: drafts see what layers with a window keep in the other pool."""
    served = engines.of(engine)
    drafter, oracle = (
        Drafter(engines.models / engine.target, engines.models / engine.draft),
        Oracle(engines.models / engine.target),
    )
    compared = 0
    for number, count in [*steps(served).items()][::9]:
        prompt, answer = oracle.tokens(served.requests[number]["text"]), served.outputs[number]["token_ids"]
        emitted, taken = 1, 0
        while emitted < len(answer):
            drafts = drafter.drafts(prompt + answer[:emitted], engine.num_steps)
            accepted = [*map(eq, drafts, answer[emitted:]), False].index(False)
            emitted, taken = emitted + accepted + 1, taken + 1
        assert taken == count, number
        compared += taken
    assert compared > 30
