"""What people serve: docs/models.md has what the checks say of it. pytest FILE --update-golden writes that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import served

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- make coverage -->\n", "<!-- end of what people serve -->\n"
HEAD = ("| # | model | drafts | engine, GPU | a program serves it | evidence |", "|---|---|---|---|---|---|")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[served.Served, served.Said]]:
    """What is said of all of them."""
    return list(served.ask_all(tmp_path_factory.mktemp("served")))


def test_the_page_says_what_the_checks_say(
    answers: list[tuple[served.Served, served.Said]], request: pytest.FixtureRequest
) -> None:
    rows = [served.row_of(*pair) for pair in answers]
    totals = [f"* {total}" for total in served.totals(answers)]
    lines = "".join(f"{line}\n" for line in ("", *totals, "", *HEAD, *rows, ""))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(before + BEGIN + lines + END + rest.partition(END)[2], encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0] == lines


def test_every_model_of_the_list_is_served() -> None:
    named = {name for server in served.servers() for name in server.models}
    there = {str(path.parent.relative_to(served.SERVED)) for path in served.SERVED.rglob("config.json")}
    assert there <= named


def test_what_has_run_is_in_the_tests_of_that_engine() -> None:
    """The class stands in the model's file, and the test has models that this one or another of the engine writes."""
    for engine, entries in served.ran().items():
        for entry in entries:
            model, test = ROOT / entry.model, ROOT / "tests" / engine / entry.test
            assert re.search(rf"\b{entry.target}\b", model.read_text(encoding="utf-8")), entry
            source = test.read_text(encoding="utf-8")
            assert re.search(r"^ *def test_\w*texts|\bFamilyTests\b", source, re.MULTILINE), entry
            assert model.suffix == ".json" or re.search(rf"^from {model.stem} import", source, re.MULTILINE), entry


def test_both_engines_serve_some_and_not_all(answers: list[tuple[served.Served, served.Said]]) -> None:
    for engine in served.ENGINES:
        of = [said for server, said in answers if server.engine == engine]
        assert sum(not said.reasons for said in of) > 8
        assert any(said.reasons for said in of)
