"""Targets that keep recurrent states, in SGLang on a CPU: it brings states back to the last token that it accepts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hybrid_models import decided, write_qwen3_5, write_qwen3_next
from nemotron_models import write_nemotron_h
from sglang_family import (
    Family,
    Running,
    accepts_as_much,
    all_accounted_for,
    as_alike,
    groups_of,
    in_16_bits,
    in_float32,
    same_texts,
)
from sglang_files import DTYPE, NEWEST, ON_GPU, RANKS, VERSION
from sglang_hybrid_heads import write_blocks, write_corrected, write_eagle3, write_selected
from sglang_hybrids import GRID, PAIRS, STATES, remembered, states_accounted_for, write_bigrams
from sglang_kimi import write_kimi_linear
from sglang_mixed import Oracle
from sglang_programs import build_program, plugin_wheel
from sglang_seers import write_seer
from sglang_server import PLANNED, Variant, accept_length, greedy, serve
from sglang_vision import with_pictures
from sglang_workload import workload

pytestmark = pytest.mark.skipif(VERSION != NEWEST, reason="stand-ins are those of what the newest calls")
REQUESTS = int(os.environ.get("SPECC_TEST_HYBRIDS", "40"))
GDN, SPACES, DENSE = "hybrid", "state-spaces", "dense-hybrid"
"""The last is the language model of a class that sees pictures."""
LATENT, ATTENDS = "latent-hybrid", "fa3"
"""One whose layers of attention have latent rows, and what attends to those on a CPU."""
SEERS = SEER, EXPERT_SEER = "hybrid-seer", "hybrid-expert-seer"
"""Those that see pictures."""
TARGETS = {
    GDN: partial(write_qwen3_next, wide=32 if ON_GPU else 16, dense=()),
    DENSE: partial(write_qwen3_5, wide=16),
    SPACES: partial(write_nemotron_h, wide=8, dtype=DTYPE),
    LATENT: partial(write_kimi_linear, wide=16, dtype=DTYPE),
    SEER: partial(write_seer, wide=16),
    EXPERT_SEER: partial(write_seer, wide=16, experts=True),
}
"""What writes each, in which all layers of the first have experts; `wide` are entries of a recurrent head, of which
SGLang's kernel of a GPU over records has no fewer than 32."""
DRAFT, HEAD, BLOCKS, CORRECTED = "bigrams", "hybrid-eagle3", "hybrid-blocks", "hybrid-corrected"
SELECTED = "hybrid-selected"
LATER = 6
"""So many more tokens than a step accepts."""
FOLLOWED = 24
"""How many tokens follow 64 texts that end in one token, at least."""


def engines_of(target: str) -> tuple[list[Variant], list[Variant]]:
    """Return engines with SGLang's own steps, and with programs; the first of each has the target's module.

    SGLang keeps states of prefixes at multiples of some tokens where a forward is launched before the results of the
    last are read, else where a text ended. Steps that a program does not serve are SGLang's, in the middle of a text.
    """
    unkept, looked_up = Variant("STANDALONE", DRAFT, target=target), Variant("NGRAM", target=target)
    module, head = Variant("NEXTN", target, target=target), Variant("EAGLE3", HEAD, target=target, overlap=True)
    overlapped, blocks = replace(module, overlap=True), Variant("DFLASH", BLOCKS, target=target)
    corrected = Variant("DSPARK", CORRECTED, target=target, overlap=True)
    selected = Variant("DFLASH", SELECTED, target=target, overlap=True)
    paged, tree = replace(overlapped, attention="fa3", page=16), replace(module, topk=3, num_draft_tokens=8)
    sampling, several = replace(module, samples=True), replace(module, shapes="3,1,0")
    adaptive = replace(module, num_steps=2, num_draft_tokens=3, adaptive=True)
    records, planned = replace(overlapped, records=True, kept="extra_buffer"), replace(overlapped, kept=PLANNED)
    if target == GDN:
        own = [module, overlapped, adaptive, tree, paged, unkept, head, blocks, corrected, selected]
        programs = [sampling, overlapped, paged, unkept, head, blocks, several, replace(looked_up, samples=True)]
        programs += [selected, corrected, replace(corrected, attention=ATTENDS, page=16)]
        programs += [adaptive, replace(adaptive, overlap=True, samples=True)]
        programs.append(replace(adaptive, overlap=True, kept=PLANNED))
        programs += [replace(overlapped, head="int8"), *[replace(module, ranks=2)] * (RANKS > 1)]
        programs += [replace(module, states="select"), replace(paged, states="select")]
        own += [records, planned]
        programs += [records, replace(records, attention="fa3", page=16, shapes="3,1,0", samples=True)]
        programs += [replace(unkept, records=True), planned, replace(planned, states="select")]
        programs.append(replace(planned, attention="fa3", page=16, records=True))
    elif target == DENSE:
        own, programs = [module, overlapped], [overlapped, replace(module, head="fp8")]
    elif target == SPACES:
        own = [module, overlapped, tree, paged, unkept]
        programs = [sampling, overlapped, paged, unkept, replace(blocks, overlap=True), several]
        programs.append(replace(overlapped, states="select"))
    elif target in SEERS:
        own, programs = [module, *[overlapped] * (target == SEER)], [overlapped, *[sampling] * (target == SEER)]
    else:
        unkept, looked_up = (replace(engine, attention=ATTENDS) for engine in (unkept, looked_up))
        overlapped, corrected = replace(unkept, overlap=True), replace(corrected, attention=ATTENDS)
        own = [unkept, overlapped, replace(unkept, topk=3, num_draft_tokens=8), corrected]
        programs = [unkept, overlapped, replace(looked_up, samples=True), replace(unkept, shapes="3,2")]
        programs += [replace(overlapped, states="select"), corrected, replace(corrected, overlap=False)]
        own.append(replace(corrected, records=True))
        programs += [replace(corrected, records=True), replace(unkept, records=True, shapes="3,2")]
        programs.append(replace(corrected, records=True, kept=PLANNED))
    return own, [replace(engine, program=True) for engine in programs]


def write_hybrids(folder: Path, *targets: str) -> None:
    """Write targets, and a draft for all of them."""
    for target in targets:
        TARGETS[target](folder / target)
    drafts = {DRAFT: write_bigrams, HEAD: write_eagle3, BLOCKS: write_blocks, CORRECTED: write_corrected}
    drafts[SELECTED] = write_selected
    for name, write in drafts.items():
        write(folder / name)


def requests_of(target: str, models: Path) -> list[dict[str, Any]]:
    """Return the requests of a target, some of them with pictures if it sees any."""
    made: Sequence[Mapping[str, Any]] = workload(REQUESTS, seed=3)
    return remembered(models / target, with_pictures(made, models) if target in SEERS else made)


def family_of(target: str, engines: Sequence[Variant]) -> Family:
    """Return the family of a target with programs, of which those with several shapes change at every step."""
    seeing = {"mm_attention_backend": "triton_attn"} if ON_GPU and target in SEERS else {}
    return Family(
        Variant(target=target, attention=ATTENDS if target == LATENT else ""),
        engines,
        lambda folder: write_hybrids(folder, target),
        partial(requests_of, target),
        arguments=STATES | seeing,
        settings={"SPECC_TEST_SHAPES": "1"},
        accepted=1.3,
    )


OWN = {target: engines_of(target)[0] for target in TARGETS}
PROGRAMS = {target: engines_of(target)[1] for target in TARGETS}
OWN[GDN].append(Variant("NGRAM", topk=2, target=GDN))
"""SGLang's own look-ups with a breadth of 1 take a tree for a chain, and texts are others."""
FAMILIES = {target: family_of(target, programs) for target, programs in PROGRAMS.items()}
ALL = [(FAMILIES[target], engine) for target in TARGETS for engine in (*OWN[target], *PROGRAMS[target])]
KEPT = [(family, engine) for family, engine in ALL if engine.algorithm != "STANDALONE"]
RUN = [(family, engine) for family, engine in ALL if engine.program]
BESIDE = [(FAMILIES[target], program, OWN[target][0]) for target in TARGETS for program in PROGRAMS[target][:2]]
BESIDE += [
    (FAMILIES[target], program, next(own for own in OWN[target] if own.draft == program.draft))
    for target in TARGETS for program in PROGRAMS[target] if program.draft in (CORRECTED, SELECTED)
]  # fmt: skip
every = pytest.mark.parametrize(("family", "engine"), ALL, ids=str)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the models once more, for engines that are no family's."""
    folder = tmp_path_factory.mktemp("hybrids")
    write_hybrids(folder, *TARGETS)
    return folder


@pytest.mark.parametrize("target", TARGETS)
def test_texts_depend_on_what_a_state_remembers(target: str, models: Path) -> None:
    """Other tokens follow one token behind other texts, and rounding decides on none of them."""
    oracle = Oracle(models / target)
    followed, ahead = decided(oracle.of_texts)
    assert followed > FOLLOWED
    assert ahead > 0.1


@in_float32
@pytest.mark.parametrize("family", FAMILIES.values(), ids=str)
def test_without_speculation_texts_are_the_targets_own(family: Family, engines: Running) -> None:
    """Against transformers, every third one."""
    oracle, answers = Oracle(engines.models / str(family)), list(greedy(engines.of(family.alone)))
    for number, request, output in answers[::3]:
        if "pictures" in request:
            continue
        prompt = request.get("input_ids") or oracle.tokens(request["text"])
        assert oracle.follow(prompt, output["token_ids"]), number


@in_float32
@every
def test_texts_are_those_without_speculation(family: Family, engine: Variant, engines: Running) -> None:
    """Requests that were thrown out or aborted count, too."""
    same_texts(engines.of(engine), engines.of(family.alone))


@in_16_bits
@pytest.mark.parametrize(
    ("family", "engine", "own"), [(family, program, family.own_of(program)) for family, program in RUN], ids=str
)
def test_texts_part_in_16_bits_no_sooner_than_sglangs_own(
    family: Family, engine: Variant, own: Variant, engines: Running
) -> None:
    """As far as near ties let texts be the same."""
    as_alike(engines.of(engine), engines.of(own), engines.of(family.alone))


@every
def test_every_slot_state_and_row_is_free_or_cached(family: Family, engine: Variant, engines: Running) -> None:
    """At the end, after steps in which drafts were accepted."""
    served = engines.of(engine)
    for group in groups_of(served):
        all_accounted_for(group)
        assert (states_accounted_for(group) > 0) == ((family, engine) in KEPT)
    finds_little = engine.algorithm == "NGRAM" and engine.topk == 1  # texts repeat little
    drafts_less = finds_little or engine.changes_to
    assert accept_length(served) > (1 if drafts_less else family.accepted)


@pytest.mark.parametrize(("family", "engine"), KEPT, ids=str)
def test_texts_go_on_from_states_that_verifications_left(family: Family, engine: Variant, engines: Running) -> None:
    """Requests that go on from an answer find the state that is kept behind its prompt.

    The last token of an answer is in no state, unless the step that ends it decided on one more, which is cut. Where
    places of states are planned, that of the interval that this step crosses is not kept.
    """
    crossed = GRID if engine.kept == PLANNED else 0
    for output in engines.of(engine).outputs[-2 * PAIRS :][1::2]:
        assert output["prompt_tokens"] - output["cached_tokens"] - crossed in (1, 2)


@pytest.mark.parametrize(("family", "engine"), RUN, ids=str)
def test_the_program_ran_the_steps_that_it_serves(family: Family, engine: Variant, engines: Running) -> None:
    """After a dry step that SGLang's own forward confirms."""
    specc = engines.of(engine).state["specc"]
    assert specc["proof"] == "passed"
    assert specc["served"] > 30
    assert specc["left"].keys() <= family.left
    assert len(specc["served_by_shape"]) == max(1, len(engine.changes_to))
    assert not engine.changes_to or min(specc["served_by_shape"].values()) > 10


@pytest.mark.parametrize(("family", "engine", "own"), BESIDE, ids=str)
def test_the_program_accepts_as_much_as_sglangs_own_step(
    family: Family, engine: Variant, own: Variant, engines: Running
) -> None:
    accepts_as_much(engines.of(engine), engines.of(own), apart=0.03)


@in_float32
@pytest.mark.parametrize("records", [False, True])
def test_texts_go_on_from_states_whose_places_were_planned(records: bool, models: Path, tmp_path: Path) -> None:
    """The states are those of the last interval, which a step has crossed that did not end the text."""
    requests, oracle = remembered(models / GDN, later=LATER), Oracle(models / GDN)
    planned = Variant("NEXTN", GDN, target=GDN, overlap=True, program=True, kept=PLANNED, records=records)
    engine = planned.engine(models) | STATES
    served = serve(engine, requests, tmp_path / "job", overlap=True, wheel=build_program(engine, tmp_path / "wheel"))
    for request, output in [*zip(requests, served.outputs, strict=True)][1::2]:
        assert output["prompt_tokens"] - output["cached_tokens"] - LATER in (1, 2)
        assert oracle.follow(request["input_ids"], output["token_ids"])


FAULTY = """
import torch

def register():
    from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend as Backend

    bring_back = Backend.update_mamba_state_after_mtp_verify

    def commit(backend, **given):
        states = backend.req_to_token_pool.get_speculative_mamba2_params_all_layers()
        windows, matrices = states.conv[0].clone(), states.temporal.clone()
        last, kept = given["last_correct_step_indices"], given["mamba_steps_to_track"]
        bring_back(backend, **given | {changed})
        {behind}

    Backend.update_mamba_state_after_mtp_verify = commit
"""
FAULTS = {
    "nothing is copied": ("{}", "states.conv[0].copy_(windows), states.temporal.copy_(matrices)"),
    "no windows": ("{}", "states.conv[0].copy_(windows)"),
    "no matrices": ("{}", "states.temporal.copy_(matrices)"),
    "of the root": ("{'last_correct_step_indices': last * 0}", ""),
    "of the node before": ("{'last_correct_step_indices': (last - 1).clamp(min=0)}", ""),
    "none for prefixes": ("{'mamba_steps_to_track': torch.full_like(kept, -1)}", ""),
    "others for prefixes": ("{'mamba_steps_to_track': (kept + 1).clamp(max=3) * (kept >= 0) - (kept < 0) * 1}", ""),
}
PLANTED = [(GDN, fault) for fault in FAULTS]
PLANTED += [
    (target, fault) for target in (SPACES, LATENT) for fault in ("no windows", "no matrices", "others for prefixes")
]


@in_float32
@pytest.mark.parametrize(("target", "fault"), PLANTED)
def test_a_state_that_is_of_another_token_is_another_text(
    target: str, fault: str, models: Path, tmp_path: Path
) -> None:
    """SGLang's own steps are as wrong as what they commit; prefixes are read by each second request alone."""
    changed, behind = FAULTS[fault]
    wheel = plugin_wheel(FAULTY.format(changed=changed, behind=behind), tmp_path)
    requests, engine = remembered(models / target), OWN[target][1]
    served = serve(engine.engine(models) | STATES, requests, tmp_path / "job", overlap=True, wheel=wheel)
    oracle = Oracle(models / target)
    prompts = [request.get("input_ids") or oracle.tokens(request["text"]) for request in requests]
    answers = [output["token_ids"] for output in served.outputs]
    right = [oracle.follow(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    if "prefixes" in fault:
        assert all(right[::2])
        assert not all(right[1::2])
    else:
        assert not any(right[::2])
