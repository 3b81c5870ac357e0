"""Drafts of the tokens in a file (`SPECC_TOKEN_MAP`), where SGLang's own steps score all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from engine_fixtures import asked, side_by_side, started
from engine_prompts import PREAMBLES, TAILS
from hybrid_models import write_qwen3_next
from sglang_files import AT_A_TIME, NEWEST, VERSION
from sglang_hybrids import alone
from sglang_programs import build_program
from sglang_server import Served, Variant, accept_length, serve

TOKENS, EVERY, STATES = 48, 5, {"max_mamba_cache_size": 40}
HEAD = Variant("EAGLE", "eagle", overlap=True, program=True, head="weights")
"""Its head is the target's."""
MODULE = Variant("NEXTN", "hybrid", target="hybrid", overlap=True, program=True, head="fp8")
"""The target's own, whose head is the target's as well."""
DRAFT = Variant("STANDALONE", "standalone", program=True, head="weights")


@dataclass(frozen=True)
class Mapped:
    """A program whose draft scores the tokens of the answers, and some more, or no token of any answer."""

    program: Variant
    known: bool

    def __str__(self) -> str:
        """For the names of tests and files."""
        return f"{self.program}-{'known' if self.known else 'unknown'}"

    def tokens(self, answers: Sequence[Mapping[str, Any]]) -> list[int]:
        """The map."""
        emitted = {token for output in answers for token in output["token_ids"]}
        others = set(range(0, 2048, EVERY)) - emitted
        return sorted(others | emitted if self.known else others)


KNOWN = [Mapped(program, known=True) for program in (HEAD, MODULE, DRAFT, replace(HEAD, ranks=2))]
UNKNOWN = [Mapped(program, known=False) for program in (HEAD, MODULE)]
RUN = [
    pytest.param(mapped, id=str(mapped), marks=pytest.mark.skipif(VERSION != NEWEST, reason="as recurrent states"))
    if mapped.program is MODULE
    else pytest.param(mapped, id=str(mapped))
    for mapped in (*KNOWN, *UNKNOWN)
]
every = pytest.mark.parametrize("mapped", RUN)
Engines = Mapping[Variant | Mapped, "Future[Served]"]


def own(program: Variant) -> Variant:
    """SGLang's own steps, on one rank."""
    return replace(program, program=False, head="engine", ranks=1)


def plain(program: Variant) -> Variant:
    """The same target without speculation."""
    return Variant(target=program.target)


@pytest.fixture(scope="module")
def engines(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engines]:
    """Each request comes when the one before it has ended, so that the program drafts at every step but the first."""
    folder = tmp_path_factory.mktemp("maps")
    write_qwen3_next(models / "hybrid", wide=16, dense=())
    texts = [first + last for first, last in zip(PREAMBLES, TAILS, strict=False)]
    requests = [alone({"text": text}, TOKENS, after=number - 1) for number, text in enumerate(texts)]

    def run(engine: Variant | Mapped) -> Served:
        variant = engine.program if isinstance(engine, Mapped) else engine
        given = variant.engine(models) | (STATES if variant.target == "hybrid" else {})
        if not isinstance(engine, Mapped):
            return serve(given, requests, folder / f"{variant.target}-{engine}", overlap=variant.overlap)
        file = folder / f"{engine}.json"
        file.write_text(json.dumps(engine.tokens(made[plain(variant)].result().outputs)))
        wheel = build_program(given, folder / f"{engine}-wheel", *variant.options, "--token-map", str(file))
        settings = {"SPECC_TOKEN_MAP": str(file)}
        return serve(given, requests, folder / str(engine), overlap=variant.overlap, wheel=wheel, settings=settings)

    wanted = list(dict.fromkeys(asked(request.session.items, "mapped")))
    before = [of(mapped.program) for mapped in wanted for of in (plain, own)]
    made: dict[Variant | Mapped, Future[Served]] = {}
    with side_by_side(AT_A_TIME) as pool:
        made |= started(pool, before, run)
        yield made | started(pool, wanted, run)


@every
def test_texts_are_those_without_speculation(mapped: Mapped, engines: Engines) -> None:
    served, expected = engines[mapped].result(), engines[plain(mapped.program)].result()
    assert [output["token_ids"] for output in served.outputs] == [output["token_ids"] for output in expected.outputs]
    assert all(len(output["token_ids"]) == TOKENS for output in served.outputs)


@every
def test_the_program_ran_all_steps(mapped: Mapped, engines: Engines) -> None:
    """After a dry step that SGLang's own forward confirms."""
    served = engines[mapped].result()
    specc = served.state["specc"]
    assert (specc["proof"], specc["left"]) == ("passed", {})
    assert specc["served"] >= sum(output["spec_verify_ct"] for output in served.outputs) > 0
    assert "the program computes the draft's head" in served.log


@pytest.mark.parametrize("mapped", RUN[: len(KNOWN)])
def test_no_draft_is_lost_that_the_map_has(mapped: Mapped, engines: Engines) -> None:
    """A part that has the best of all tokens gives it, too: a text takes as many steps, or fewer."""
    served, expected = engines[mapped].result(), engines[own(mapped.program)].result()
    assert accept_length(served) > 1.3
    if mapped.program.head == "weights":
        for output, alike in zip(served.outputs, expected.outputs, strict=True):
            assert output["spec_verify_ct"] <= alike["spec_verify_ct"]


@pytest.mark.parametrize("mapped", RUN[len(KNOWN) :])
def test_no_draft_is_accepted_that_the_map_lacks(mapped: Mapped, engines: Engines) -> None:
    """But the first of a text, which SGLang drafts behind its prefill."""
    for output in engines[mapped].result().outputs:
        assert TOKENS - 2 <= output["spec_verify_ct"] <= TOKENS
