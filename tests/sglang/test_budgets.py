"""Programs whose requests share the target's rows out, inside SGLang: texts, rows, and what is accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sglang_family import all_accounted_for, best_in_16_bits, in_16_bits, in_float32, same_logprobs, same_texts
from sglang_server import Served, Variant, accept_length

HEAD = Variant(
    "EAGLE", "eagle", num_steps=4, num_draft_tokens=5, overlap=True, program=True, attention="fa3", budget="2"
)
PROGRAMS = [
    HEAD,
    replace(HEAD, overlap=False, page=16, samples=True, budget="3"),
    Variant("EAGLE3", "eagle3", overlap=True, program=True, samples=True, attention="fa3", budget="2"),
    Variant("STANDALONE", "standalone", program=True, attention="fa3", budget="2"),
    Variant("DFLASH", "dflash", target="masked", overlap=True, program=True, attention="fa3", budget="2"),
]
TOLD = [
    Variant("DSPARK", "dspark", target="masked", overlap=True, program=True, attention="fa3", budget="2"),
    Variant("DFLASH", "dflash2", target="masked", overlap=True, program=True, attention="fa3", budget="2"),
]
"""Blocks whose drafts know the one before."""
SEVERAL = [
    replace(HEAD, budget="2,3,all", shapes="4,2,0", samples=True),
    replace(PROGRAMS[-1], budget="2,3,all", shapes="3,2"),
]
"""Programs of several budgets, which change at every step."""
DRAWN = [
    replace(HEAD, samples=True, verify="rejection"),
    replace(PROGRAMS[2], overlap=False, verify="block"),
    replace(PROGRAMS[3], overlap=True, samples=True, verify="rejection"),
    replace(PROGRAMS[4], overlap=False, samples=True, verify="block"),
]
"""Those whose drafts are drawn, of which some are judged."""
SEVERAL += [
    replace(SEVERAL[0], overlap=False, verify="block"),
    replace(SEVERAL[1], samples=True, verify="rejection"),
]
DRAWN += [replace(TOLD[0], samples=True, verify="rejection"), replace(TOLD[1], overlap=False, verify="block")]
TREES = [
    Variant("EAGLE", "eagle", topk=4, num_draft_tokens=12, overlap=True, program=True, attention="fa3", budget="4"),
    Variant("EAGLE3", "eagle3", topk=4, num_draft_tokens=12, program=True, samples=True, attention="fa3", budget="3"),
    replace(PROGRAMS[4], samples=True, topk=4, num_draft_tokens=8, shapes="3x4x8", budget="3"),
]
"""Trees, of which every request has its first nodes."""
SEVERAL.append(replace(PROGRAMS[3], topk=4, num_draft_tokens=12, samples=True, page=16, budget="3,6,all"))
PROGRAMS += SEVERAL + DRAWN + TOLD + TREES
programs = pytest.mark.parametrize("variant", PROGRAMS, ids=str)


@in_float32
@programs
def test_texts_are_those_without_speculation(variant: Variant, served: Served, plain: Served) -> None:
    """Of greedy requests, whoever has rows beside them."""
    same_texts(served, plain)


@in_float32
@pytest.mark.parametrize("variant", [program for program in PROGRAMS if program.samples], ids=str)
def test_log_probabilities_are_those_without_speculation(variant: Variant, served: Served, plain: Served) -> None:
    """By the program's own steps: it leaves none of these requests to SGLang."""
    same_logprobs(served, plain)
    assert "logprobs" not in served.state["specc"]["left"]


@in_16_bits
@programs
def test_tokens_are_the_targets_best_as_far_as_16_bits_tell(variant: Variant, served: Served) -> None:
    best_in_16_bits(served)


@programs
def test_every_slot_and_row_is_free_or_cached_at_the_end(variant: Variant, served: Served) -> None:
    """And requests have accepted more than the one draft that each would have of rows shared out evenly."""
    all_accounted_for(served.state["specc_testing"])
    assert served.state["specc"]["proof"] == "passed"
    assert served.state["specc"]["served"] > 100
    assert served.state["specc"]["left"].keys() <= {"sampling", "logprobs"}
    assert accept_length(served) > 1.3


@pytest.mark.parametrize("variant", SEVERAL, ids=str)
def test_steps_of_all_budgets_ran(variant: Variant, served: Served) -> None:
    steps = served.state["specc"]["served_by_shape"]
    assert set(steps) == variant.changes_to
    assert min(steps.values()) > 20
