"""Programs in the place of SGLang's own look-ups (NGRAM), on a CPU: its texts, and nothing lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sglang_family import all_accounted_for, same_texts
from sglang_programs import build_program
from sglang_server import PLAIN, PREFILL_CHUNK, Served, Variant, accept_length, serve

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
def test_the_program_accepts_about_as_much_as_sglangs_own(variant: Variant, served: Served, running: Any) -> None:
    """Whose trie has texts of other requests as well, and other keys."""
    own = running[OWN].result()
    assert accept_length(served) > 0.9 * accept_length(own)


def test_texts_that_repeat_themselves_take_few_steps(models: Path, tmp_path: Path) -> None:
    variant = PROGRAMS[0]
    engine = variant.engine(models) | {"max_total_tokens": 4096}
    sampling = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}
    requests = [{"text": text * 8, "sampling": sampling} for text in ("import os\n", "    return self.a\n", "a, b = ")]
    wheel = build_program(engine, tmp_path / "wheel")
    served = serve(engine, requests, tmp_path / "job", overlap=True, wheel=wheel)
    plain = serve(PLAIN.engine(models) | {"max_total_tokens": 4096}, requests, tmp_path / "plain")
    assert [output["token_ids"] for output in served.outputs] == [output["token_ids"] for output in plain.outputs]
    assert accept_length(served) > 2.5
    assert served.state["specc"]["left"] == {}


@programs
def test_the_program_ran_the_steps_that_it_serves(variant: Variant, served: Served) -> None:
    """And SGLang those with a request that the program does not serve, in the same server."""
    state = served.state["specc"]
    assert state["program"] == "specc_program_served"
    assert state["served"] > 100
    assert set(state["left"]) == (set() if variant.samples else {"logprobs", "sampling"})
    assert set(state["served_by_shape"]) == set((variant.shapes or state["shape"]).split(","))
    assert accept_length(served) > 1.1
