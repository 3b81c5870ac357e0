"""Programs in the place of SGLang's own blocks, on a CPU: their texts and accepted lengths, and nothing is lost."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from sglang_blocks import write_blocks
from sglang_family import (
    accepts_as_much,
    all_accounted_for,
    best_in_16_bits,
    in_16_bits,
    in_float32,
    much_happened,
    same_logprobs,
    same_texts,
    serve_adapted,
)
from sglang_files import ON_GPU, RANKS
from sglang_lora import write_adapted
from sglang_server import Served, Variant, accept_length

DRAFTS = {"dflash": "DFLASH", "dflash2": "DFLASH", "dspark": "DSPARK"}
"""SGLang's algorithm by the draft, whose class tells those of one algorithm apart."""
FAR = [Variant(name, draft, target="masked", overlap=True) for draft, name in DRAFTS.items()]
NEAR = [replace(own, draft=f"{own.draft}-near") for own in FAR]
"""Of drafts whose layers see a window."""
OWN = [*FAR, *NEAR]
"""SGLang's own, without a program. Drafts of DSPARK are told of the one before, and `dflash2` has a selector."""
PROGRAMS = {
    program: own
    for own in FAR
    for program in (
        *[replace(own, program=True, overlap=False, ranks=2)] * (RANKS > 1),
        replace(own, program=True, samples=True),
        replace(own, program=True, samples=own.algorithm == "DSPARK", attention="fa3", page=16),
        replace(own, program=True, samples=True, head="int8" if own.algorithm == "DSPARK" else "weights"),
    )
}
"""Which draft as each of them. Some score drafts by themselves, with the target's head."""
PROGRAMS |= {replace(own, program=True): own for own in NEAR}
PROGRAMS |= {replace(own, program=True, samples=True, attention="fa3", page=16): own for own in NEAR}
COMPARED = [(program, own) for program, own in PROGRAMS.items() if own.algorithm != "DSPARK" or not ON_GPU]
"""Under fa3, as on a GPU, SGLang's own step has a query less than a block of the second draft has tokens."""
SHAPED = [replace(own, program=True, samples=True, shapes="3,2,1,0") for own in FAR]
SHAPED += [replace(FAR[0], program=True, attention="fa3", page=16, shapes="3,1")]
"""Programs of blocks of several sizes, which change at every step."""
PRODUCTS = replace(FAR[0], program=True, samples=True, topk=4, num_draft_tokens=8, attention="fa3", shapes="3x4x8")
BRANCHED = [PRODUCTS, replace(PRODUCTS, overlap=False, samples=False, page=16, shapes="3x4x8,3,0")]
"""Programs of trees of the best products, of as many tokens as SGLang's own blocks have."""
programs = pytest.mark.parametrize("variant", [*PROGRAMS, *SHAPED, *BRANCHED], ids=str)
every = pytest.mark.parametrize("variant", [*OWN, *PROGRAMS, *SHAPED, *BRANCHED], ids=str)
beside = pytest.mark.parametrize(("variant", "own"), PROGRAMS.items(), ids=str)


@in_float32
@every
def test_texts_are_those_without_speculation(variant: Variant, served: Served, plain: Served) -> None:
    same_texts(served, plain)


@in_16_bits
@every
def test_tokens_are_the_targets_best_as_far_as_16_bits_tell(variant: Variant, served: Served) -> None:
    best_in_16_bits(served)


@every
def test_every_slot_and_row_is_free_or_cached_at_the_end(variant: Variant, served: Served) -> None:
    all_accounted_for(served.state["specc_testing"])


@every
def test_everything_that_was_meant_to_happen_happened(variant: Variant, served: Served) -> None:
    much_happened(served, overlap=variant.overlap)


@programs
def test_the_program_ran_the_steps_that_it_serves(variant: Variant, served: Served) -> None:
    """And SGLang those with a request that the program does not serve, in the same server."""
    state = served.state["specc"]
    assert state["program"] == "specc_program_served"
    assert state["proof"] == "passed"
    assert state["served"] > 100
    assert set(state["left"]) == (set() if variant.samples else {"logprobs", "sampling"})
    if variant.attention == "fa3" and not ON_GPU:  # of its own steps SGLang prepares a block, and verification twice
        assert served.state["specc_testing"]["prepared"].get("TARGET_VERIFY", 0) == 3 * sum(state["left"].values())


@pytest.mark.parametrize(("variant", "own"), COMPARED, ids=str)
def test_the_program_accepts_as_much_as_sglangs_own_step(
    variant: Variant, own: Variant, served: Served, running: Mapping[Variant, Future[Served]]
) -> None:
    """By drafts that are right at several places: of three more than one is, on the whole, or almost one in windows."""
    accepts_as_much(served, running[own].result())
    assert accept_length(served) > (1.4 if own in NEAR else 2)


@in_float32
@beside
def test_logprobs_are_those_without_speculation(variant: Variant, own: Variant, served: Served, plain: Served) -> None:
    same_logprobs(served, plain)


@in_float32
@pytest.mark.parametrize("own", FAR, ids=str)
def test_requests_with_adapters_have_the_texts_that_they_have_without_speculation(own: Variant, tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_adapted(models)
    write_blocks(models)
    served, alone = serve_adapted(replace(own, program=True), models, tmp_path)
    same_texts(served, alone)
    all_accounted_for(served.state["specc_testing"])
    assert served.state["specc"]["served"] > 100
    assert served.state["specc"]["left"].keys() <= {"logprobs", "sampling"}


@pytest.mark.parametrize(("variant", "own"), [(variant, FAR[0]) for variant in BRANCHED], ids=str)
def test_a_tree_of_products_accepts_more_than_a_block(
    variant: Variant, own: Variant, served: Served, running: Mapping[Variant, Future[Served]]
) -> None:
    """SGLang's own blocks are of the same draft, and have as many places as the tree is deep."""
    steps = served.state["specc"]["served_by_shape"]
    assert set(steps) == variant.changes_to and min(steps.values()) > 20
    if len(steps) == 1:
        assert accept_length(served) > 1.05 * accept_length(running[own].result())


@pytest.mark.parametrize("variant", SHAPED, ids=str)
def test_steps_of_all_shapes_ran(variant: Variant, served: Served) -> None:
    """And drafts are accepted in most of them, whatever the block of the step before was."""
    steps = served.state["specc"]["served_by_shape"]
    assert set(steps) == variant.changes_to
    assert min(steps.values()) > 20
    assert accept_length(served) > 1.3
