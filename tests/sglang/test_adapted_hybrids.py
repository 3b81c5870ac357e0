"""Adapters (LoRA) over recurrent states, in SGLang on a CPU: behind one text each adapter has a state of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nemotron_models import write_nemotron_h
from sglang_family import Family, FamilyTests, Running, groups_of, in_float32, of_merged_weights
from sglang_files import DTYPE, NEWEST, ON_GPU, VERSION
from sglang_hybrid_heads import write_corrected
from sglang_hybrids import PAIRS, STATES, remembered, states_accounted_for
from sglang_lora import ATTENTION, MLP, merged, with_adapters, write_adapters
from sglang_seers import write_seer
from sglang_server import Variant
from sglang_workload import workload

pytestmark = pytest.mark.skipif(VERSION != NEWEST, reason="stand-ins are those of what the newest calls")
REQUESTS = int(os.environ.get("SPECC_TEST_HYBRIDS", "60"))
NETS, SPACES, CORRECTED = "adapted-hybrid", "adapted-state-spaces", "hybrid-corrected"
GATED = ("in_proj_qkvz", "out_proj")
"""What an adapter changes of a gated delta net; of a state space it changes what is written alone."""
ADAPTERS: Mapping[str, Mapping[str, tuple[int, Sequence[str]]]] = {
    NETS: {"terse": (4, (*GATED, *ATTENTION, *MLP)), "vivid": (8, GATED), "wry": (2, (*GATED, *MLP))},
    SPACES: {"terse": (4, ("out_proj", *ATTENTION)), "vivid": (8, ("out_proj",)), "wry": (2, ("out_proj", MLP[-1]))},
}
TARGETS = {
    NETS: partial(write_seer, wide=32 if ON_GPU else 16),
    SPACES: partial(write_nemotron_h, wide=8, dtype=DTYPE),
}
OWN = {target: Variant("NEXTN", target, target=target) for target in TARGETS}


def write_models(target: str, folder: Path) -> None:
    """Write a target with its module, its adapters, and a draft of blocks."""
    TARGETS[target](folder / target)
    write_adapters(folder, target, ADAPTERS[target])
    write_corrected(folder / CORRECTED)


def requests_of(target: str, models: Path) -> list[dict[str, Any]]:
    """Return requests with adapters and without, and behind them some that go on from an answer.

    The first of these have no adapter. Others may still run beside them, and throw states out.
    """
    made = with_adapters(workload(REQUESTS, seed=7), seed=7, adapters=ADAPTERS[target])
    for name in (None, *ADAPTERS[target]):
        pairs = remembered(merged(models, target, name), made)[len(made) :]
        made += [pair | {"adapter": name} for pair in pairs]
    return made


def family_of(target: str, *programs: Variant) -> Family:
    """Return the family of a target with programs, every step of which has rows of padding."""
    return Family(
        Variant(target=target),
        [replace(program, program=True) for program in programs],
        partial(write_models, target),
        partial(requests_of, target),
        own=OWN[target],
        arguments=STATES | ({"mm_attention_backend": "triton_attn"} if ON_GPU and target == NETS else {}),
        adapters=[*ADAPTERS[target]],
        settings={"SPECC_TEST_PAD": "1"},
        accepted=1.2,
    )


OVERLAPPED = {target: replace(own, overlap=True) for target, own in OWN.items()}
FAMILIES = [
    family_of(
        NETS,
        replace(OWN[NETS], samples=True),
        replace(OVERLAPPED[NETS], states="select"),
        replace(OVERLAPPED[NETS], records=True, kept="extra_buffer"),
        Variant("DSPARK", CORRECTED, target=NETS, overlap=True),
    ),
    family_of(SPACES, replace(OVERLAPPED[SPACES], samples=True)),
]
PROGRAMS = [(family, program) for family in FAMILIES for program in family.programs]
BESIDE = [(family, program, family.own_of(program)) for family, program in PROGRAMS if program.draft != CORRECTED]
each_program = pytest.mark.parametrize(("family", "engine"), PROGRAMS, ids=str)


class TestAdaptedHybrids(FamilyTests):
    compared = PROGRAMS
    beside = BESIDE


@in_float32
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_without_speculation_texts_are_those_of_merged_weights(family: Family, engines: Running) -> None:
    of_merged_weights(family, engines)


@each_program
def test_every_state_is_free_or_cached(family: Family, engine: Variant, engines: Running) -> None:
    assert all(states_accounted_for(group) > 0 for group in groups_of(engines.of(engine)))


@each_program
def test_texts_go_on_from_states_of_their_own_adapter(family: Family, engine: Variant, engines: Running) -> None:
    """And so has the target alone answered the same prompts; each of them has requests that go on from its answers."""
    pairs = 2 * PAIRS * len(family.adapters)
    for output in engines.of(engine).outputs[-pairs:][1::2]:
        assert output["prompt_tokens"] - output["cached_tokens"] in (1, 2)


@each_program
def test_the_program_ran_the_steps_that_it_serves(family: Family, engine: Variant, engines: Running) -> None:
    """After a dry step that SGLang's own forward confirms."""
    specc = engines.of(engine).state["specc"]
    assert specc["proof"] == "passed"
    assert specc["served"] > 30
    assert specc["left"].keys() <= family.left
