"""Programs in the place of SGLang's own look-ups (NGRAM), on a CPU: its texts, and nothing lost on the way."""

from __future__ import annotations

import pytest
from sglang_family import all_accounted_for, same_texts
from sglang_server import PREFILL_CHUNK, Served, Variant, accept_length

OWN = Variant("NGRAM", overlap=True)
"""SGLang's own, without a program."""
PROGRAMS = [
    Variant("NGRAM", overlap=True, program=True),
    Variant("NGRAM", topk=2, num_draft_tokens=7, program=True),
    Variant("NGRAM", topk=3, num_draft_tokens=12, overlap=True, program=True, samples=True),
    Variant("NGRAM", topk=2, num_draft_tokens=7, overlap=True, program=True, shapes="3x2x7,4,0"),
]
programs = pytest.mark.parametrize("variant", PROGRAMS, ids=str)
every = pytest.mark.parametrize("variant", [OWN, *PROGRAMS], ids=str)


@every
def test_texts_are_those_without_speculation(variant: Variant, served: Served, plain: Served) -> None:
    same_texts(served, plain)


@every
def test_every_slot_and_row_is_free_or_cached_at_the_end(variant: Variant, served: Served) -> None:
    all_accounted_for(served.state["specc_testing"])


@every
def test_everything_that_was_meant_to_happen_happened(variant: Variant, served: Served) -> None:
    outputs = served.outputs
    assert served.state["specc_testing"]["overlap"] == variant.overlap
    assert sum(output["num_retractions"] for output in outputs) > 0
    assert sum(output["cached_tokens"] for output in outputs) > 1000
    assert max(output["prompt_tokens"] for output in outputs) > 3 * PREFILL_CHUNK
    assert sum(output["finish_reason"]["type"] == "abort" for output in outputs) > 5


@programs
def test_the_program_ran_the_steps_that_it_serves(variant: Variant, served: Served) -> None:
    """And SGLang those with a request that the program does not serve, in the same server."""
    state = served.state["specc"]
    assert state["program"] == "specc_program_served"
    assert state["served"] > 100
    assert set(state["left"]) == (set() if variant.samples else {"logprobs", "sampling"})
    assert set(state["served_by_shape"]) == set((variant.shapes or state["shape"]).split(","))
    assert accept_length(served) > 1.1
