"""Programs in the place of SGLang's own look-ups (NGRAM), on a CPU: its texts, and nothing lost on the way."""

from __future__ import annotations

from dataclasses import replace
from operator import eq
from pathlib import Path

import pytest
from sglang_family import (
    all_accounted_for,
    best_in_16_bits,
    in_16_bits,
    in_float32,
    much_happened,
    same_texts,
    serve_adapted,
)
from sglang_lora import write_adapted
from sglang_mixed import Oracle
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
LONGEST = 8
"""How many last tokens of a text programs compare by default."""
programs = pytest.mark.parametrize("variant", PROGRAMS, ids=str)
every = pytest.mark.parametrize("variant", [OWN, *PROGRAMS], ids=str)


@in_float32
@every
def test_texts_are_those_without_speculation(variant: Variant, served: Served, plain: Served) -> None:
    same_texts(served, plain)


@in_16_bits
@programs
def test_tokens_are_the_targets_best_as_far_as_16_bits_tell(variant: Variant, served: Served) -> None:
    """SGLang's own step emitted others on an H200, three in 3862."""
    best_in_16_bits(served)


@every
def test_every_slot_and_row_is_free_or_cached_at_the_end(variant: Variant, served: Served) -> None:
    all_accounted_for(served.state["specc_testing"])


@every
def test_everything_that_was_meant_to_happen_happened(variant: Variant, served: Served) -> None:
    much_happened(served, overlap=variant.overlap, retractions=8)


def drafted(text: list[int], variant: Variant) -> list[list[int]]:
    """The branches that a program looks up: what followed the longest matches, the latest first, of other beginnings.

    The end of the text is followed by what it repeats.
    """
    places: list[tuple[int, int]] = []
    for end in range(len(text) - 1):
        most = min(LONGEST, end + 1)
        match = next((back for back in range(most) if text[end - back] != text[-1 - back]), most)
        places += [(match, end)] * (match > 0)
    branches: dict[int, list[int]] = {}
    steps = -(-(variant.num_draft_tokens - 1) // variant.topk)
    for _, end in sorted(places, reverse=True):
        grown = [*text]
        for place in range(end + 1, end + 1 + steps):
            grown.append(grown[place])
        if len(branches) < variant.topk:
            branches.setdefault(grown[len(text)], grown[len(text) :])
    room = variant.num_draft_tokens - 1
    return [branch[: max(0, room - steps * place)] for place, branch in enumerate(branches.values())]


def steps_of(prompt: list[int], answer: list[int], variant: Variant) -> int:
    """How many steps have emitted an answer, whose first token is the prefill's."""
    emitted, steps = 1, 0
    while emitted < len(answer):
        rest = answer[emitted:]
        right = [list(map(eq, branch, rest)) for branch in drafted(prompt + answer[:emitted], variant)]
        accepted = max(((*flags, False).index(False) for flags in right), default=0)
        emitted, steps = emitted + accepted + 1, steps + 1
    return steps


@pytest.mark.parametrize("variant", [PROGRAMS[2]], ids=str)
def test_steps_are_those_of_look_ups_in_the_whole_text(variant: Variant, served: Served) -> None:
    """By plain Python: prompts in chunks and from the cache of prefixes, and what was emitted so far."""
    oracle, compared, chunked, cached = Oracle(), 0, 0, 0
    for number, (request, output) in enumerate(zip(served.requests, served.outputs, strict=True)):
        if output["num_retractions"] or output["finish_reason"]["type"] == "abort":
            continue
        prompt = oracle.tokens(request["text"])
        expected = steps_of(prompt, output["token_ids"], variant)
        assert output.get("spec_verify_ct", 0) == expected, number
        compared += expected
        chunked += len(prompt) - output["cached_tokens"] > PREFILL_CHUNK
        cached += output["cached_tokens"] > 0
    assert compared > 500
    assert min(chunked, cached) > 10


def test_texts_that_repeat_themselves_take_few_steps(models: Path, tmp_path: Path) -> None:
    variant = PROGRAMS[0]
    engine = variant.engine(models) | {"max_total_tokens": 4096}
    sampling = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}
    texts = ("import os\n", "    return self.a\n", "a, b = ")
    requests = [{"text": text * 8, "sampling": sampling} for text in texts]
    wheel = build_program(engine, tmp_path / "wheel")
    served = serve(engine, requests, tmp_path / "job", overlap=True, wheel=wheel)
    plain = serve(PLAIN.engine(models) | {"max_total_tokens": 4096}, requests, tmp_path / "plain")
    assert [output["token_ids"] for output in served.outputs] == [output["token_ids"] for output in plain.outputs]
    assert accept_length(served) > 2
    assert served.state["specc"]["left"] == {}


@in_float32
def test_requests_with_adapters_have_the_texts_that_they_have_without_speculation(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_adapted(models)
    served, alone = serve_adapted(replace(PROGRAMS[1], target="adapted", overlap=True), models, tmp_path)
    same_texts(served, alone)
    all_accounted_for(served.state["specc_testing"])
    assert served.state["specc"]["served"] > 100
    assert served.state["specc"]["left"].keys() <= {"logprobs", "sampling"}


@programs
def test_the_program_ran_the_steps_that_it_serves(variant: Variant, served: Served) -> None:
    """And SGLang those with a request that the program does not serve, in the same server."""
    state = served.state["specc"]
    assert state["program"] == "specc_program_served"
    assert state["served"] > 100
    assert set(state["left"]) == (set() if variant.samples else {"logprobs", "sampling"})
    assert set(state["served_by_shape"]) == set((variant.shapes or state["shape"]).split(","))
    assert accept_length(served) > 1.1
