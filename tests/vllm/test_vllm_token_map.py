"""Drafts of the tokens in a file (`SPECC_TOKEN_MAP`), against vLLM's own steps of a draft whose head has no others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from engine_fixtures import asked, side_by_side, started
from head_layouts import EXAMPLES
from transformers import AutoTokenizer
from vllm_files import ON_GPU
from vllm_models import TOKEN_MAP
from vllm_programs import build_program, settings
from vllm_server import PLAIN, Served, Variant, serve
from vllm_workload import PREAMBLES, TAILS, greedy

TOKENS = 48
MAPPED = Variant("eagle3", "eagle3", program=True, head="weights", token_map=True)
"""All entries of its head are trained, of which a quarter is read."""
OF_TARGET = Variant("eagle", "eagle", ahead=True, program=True, head="int8", token_map=True)
"""Its head is the target's."""
variants = pytest.mark.parametrize(
    "variant",
    [MAPPED, OF_TARGET, *(replace(variant, ranks=2) for variant in (MAPPED, OF_TARGET) if not ON_GPU)],
    ids=str,
)
compared = pytest.mark.parametrize("variant", [MAPPED, *[replace(MAPPED, ranks=2)] * (not ON_GPU)], ids=str)


@pytest.fixture(scope="module")
def engines(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Variant, Future[Served]]]:
    """Each request comes when the one before it has ended, so that the program drafts at every step but the first."""
    tokenizer, folder = AutoTokenizer.from_pretrained(EXAMPLES / "target"), tmp_path_factory.mktemp("maps")
    prompts = [tokenizer(first + last).input_ids for first, last in zip(PREAMBLES * 2, TAILS, strict=False)]
    requests = [greedy(prompt, TOKENS) for prompt in prompts]
    requests = [
        request | ({"after": [number - 1, TOKENS]} if number else {}) for number, request in enumerate(requests)
    ]

    def run(variant: Variant) -> Served:
        where = folder / str(variant)
        wheel = build_program(variant, models, where.with_suffix(".wheel")) if variant.program else None
        return serve(variant.engine(models), requests, where, wheel=wheel, settings=settings(variant, models))

    wanted: list[Variant] = [*asked(request.session.items, "variant")]
    with side_by_side(1) as pool:
        yield started(
            pool,
            [PLAIN, *dict.fromkeys(wanted), *(own(request) for request in wanted if request.draft == "eagle3")],
            run,
        )


def own(variant: Variant) -> Variant:
    """VLLM's own steps, on one rank."""
    return replace(variant.own, ranks=1)


def verifications(output: Mapping[str, Any]) -> Iterator[tuple[int, list[int]]]:
    """Where the drafts of each verification begin in an answer, and what it emitted; vLLM made those of the first."""
    tokens, lengths = output["token_ids"], output["accepted"]
    for begin, length in zip(accumulate(lengths, initial=1), lengths, strict=False):
        yield begin, tokens[begin : begin + length]


@variants
def test_texts_are_those_without_speculation(variant: Variant, engines: Any) -> None:
    served, plain = engines[variant].result(), engines[PLAIN].result()
    assert [output["token_ids"] for output in served.outputs] == [output["token_ids"] for output in plain.outputs]
    assert all(len(output["token_ids"]) == TOKENS for output in served.outputs)


@variants
def test_what_is_accepted_is_in_the_map(variant: Variant, engines: Any, models: Path) -> None:
    """Of texts that go on with other tokens as well; and drafts are good."""
    served, known = engines[variant].result(), set(json.loads((models / TOKEN_MAP).read_text()))
    steps = [emitted for output in served.outputs for _, emitted in [*verifications(output)][1:]]
    assert all(known.issuperset(emitted[:-1]) for emitted in steps)
    assert {token for output in served.outputs for token in output["token_ids"]} - known
    assert sum(map(len, steps)) > 1.3 * len(steps)
    assert served.counts is not None
    assert served.counts["program_steps"] > 0.8 * len(steps)


@compared
def test_as_much_is_accepted_as_of_a_head_of_these_tokens(variant: Variant, engines: Any) -> None:
    """Wherever both verify at the same place of a text."""
    served, alone = engines[variant].result(), engines[own(variant)].result()
    both, of_program = 0, 0
    for output, expected in zip(served.outputs, alone.outputs, strict=True):
        lengths = {begin: len(emitted) for begin, emitted in verifications(expected)}
        for begin, emitted in [*verifications(output)][1:-1]:
            of_program += 1
            both += begin in lengths
            assert len(emitted) == lengths.get(begin, len(emitted)), begin
    assert both > 0.7 * of_program > 50
