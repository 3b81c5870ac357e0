"""Drafts that a program draws and weighs by what they were drawn from, inside SGLang: texts, and their distribution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from engine_fixtures import asked, side_by_side, started
from sglang_draws import BIAS, CROWD, TEXTS, short, texts
from sglang_family import all_accounted_for, in_float32, same_texts
from sglang_programs import build_program
from sglang_server import PLAIN, Served, Variant, accept_length, serve
from text_statistics import surprise

HEAD = Variant("EAGLE", "eagle", overlap=True, program=True, samples=True, verify="rejection")
PROGRAMS = [
    HEAD,
    Variant("EAGLE3", "eagle3", program=True, samples=True, verify="block"),
    Variant("STANDALONE", "standalone", overlap=True, program=True, samples=True, verify="rejection"),
    Variant("DFLASH", "dflash", target="masked", overlap=True, program=True, samples=True, verify="rejection"),
    Variant("DFLASH", "dflash2", target="masked", overlap=True, program=True, samples=True, verify="block"),
    Variant("DSPARK", "dspark", target="masked", overlap=True, program=True, samples=True, verify="block"),
]
"""SGLang itself draws the first draft behind a prompt of the heads, and takes the most probable one of a model's."""
LIMITED = [
    replace(HEAD, attention="fa3", budget="2"),
    replace(PROGRAMS[1], attention="fa3", budget="2"),
    replace(PROGRAMS[2], attention="fa3", budget="2"),
    replace(PROGRAMS[3], overlap=False, attention="fa3", budget="2", verify="block"),
]
"""Those that share rows of the target out by what drafts are drawn from, whose texts are no seed's."""
programs = pytest.mark.parametrize("variant", PROGRAMS, ids=str)


@in_float32
@programs
def test_texts_are_those_without_speculation(variant: Variant, served: Served, plain: Served) -> None:
    """Of greedy requests, in batches with others that draw."""
    same_texts(served, plain)


@programs
def test_every_slot_and_row_is_free_or_cached_at_the_end(variant: Variant, served: Served) -> None:
    all_accounted_for(served.state["specc_testing"])
    assert served.state["specc"]["served"] > 100
    assert served.state["specc"]["left"] == {}
    assert accept_length(served) > 1.5


@pytest.fixture(scope="module")
def draws(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Variant, Future[Served]]]:
    """Short texts of some prompts, two engines at a time."""
    folder = tmp_path_factory.mktemp("draws")
    needed = [variant for variant in PROGRAMS + LIMITED if variant in asked(request.session.items, "drawn")]

    def run(variant: Variant) -> Served:
        """Texts of each seed, and as many again that are a little too warm; without a program those of no seed.

        With a budget all requests have one seed.
        """
        engine, limit = variant.engine(models) | CROWD, 300 + TEXTS
        if variant == PLAIN:
            return serve(engine, short(seeds=False), folder / "plain", limit_s=limit)
        wheel = build_program(engine, folder / f"{variant}-wheel", *variant.options)
        alike, settings = bool(variant.budget), {"SPECC_TEST_SHAPES": "1"} if variant.changes_to else {}
        requests = [*short(seeds=True, alike=alike), *short(BIAS, seeds=True, alike=alike)]
        job = folder / str(variant)
        return serve(engine, requests, job, overlap=variant.overlap, wheel=wheel, settings=settings, limit_s=limit)

    with side_by_side(2) as pool:
        yield started(pool, [PLAIN, *needed], run)


@pytest.mark.parametrize("drawn", PROGRAMS + LIMITED, ids=str)
def test_a_program_s_distribution_is_that_without_speculation(
    drawn: Variant, draws: Mapping[Variant, Future[Served]]
) -> None:
    """And a temperature that is a little too high is noticed by the same test."""
    served, plain = draws[drawn].result(), draws[PLAIN].result()
    assert served.state["specc"]["left"] == {}
    fair, biased, expected = texts(served)[:3], texts(served)[3:], texts(plain)
    assert surprise(*zip(fair, expected, strict=True)) > 1e-3
    assert surprise(*zip(biased, expected, strict=True)) < 1e-3
