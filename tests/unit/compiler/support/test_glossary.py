"""docs/glossary.md: terms in order, none twice, one short sentence each, and those that users meet are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "glossary.md").read_text()
TABLES = {
    part.partition("\n")[0]: re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", part, re.M)[1:]
    for part in PAGE.split("\n## ")[1:]
}
TERMS = [row for rows in TABLES.values() for row in rows]


@pytest.mark.parametrize("title", TABLES)
def test_terms_are_in_order(title: str) -> None:
    terms = [term.lower() for term, _ in TABLES[title]]
    assert terms == sorted(terms)


def test_no_term_stands_twice() -> None:
    terms = [term for term, _ in TERMS]
    assert len(terms) == len(set(terms)) > 60


@pytest.mark.parametrize(("term", "meaning"), TERMS, ids=lambda text: text.split(" ")[0])
def test_a_meaning_is_one_short_sentence(term: str, meaning: str) -> None:
    assert meaning.endswith(".")
    assert meaning[0].isupper() or meaning.startswith("`")
    assert ". " not in meaning
    assert len(meaning) <= 120


def test_the_field_s_names_are_explained() -> None:
    """Those that CONTRIBUTING.md calls the field's, and README says where the page is."""
    named = re.search(r"Names are the field's: (.*?)\.\n", (ROOT / "CONTRIBUTING.md").read_text())
    assert named
    words = re.split(r"[,;] ", named[1])
    assert "bonus token" in words
    assert set(words) <= {term for term, _ in TERMS}
    assert "(docs/glossary.md)" in (ROOT / "README.md").read_text()
