"""Prose of pages: most sentences are short, and none begins with what it is only a part of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("docs/**/*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tests/README.md"))]
)
NOT_YET = frozenset[str]()
"""Pages whose sentences are still to be rewritten, by their paths from the root."""

WORDS = 30
"""A short sentence has fewer."""

ONE_IN = 10
"""One sentence in so many may be longer."""

LEAST = 4
"""Words of a sentence; what has fewer is a title in bold, or an item of a list, and makes no page shorter."""

_MARKER = re.compile(r"(?:[*+-]|\d+\.|>) ")
_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][)*\"])|(?<=[.!?]\*\*))(?<!e\.g\.)(?<!i\.e\.)(?<!al\.)\s+")


def paragraphs(page: str) -> list[str]:
    """Paragraphs and items of lists, each in one line, without code blocks, tables, headings and HTML."""
    collected, code = [""], False
    for line in map(str.strip, page.splitlines()):
        fence = line.startswith("```")
        code ^= fence
        if code or fence or not line or line.startswith(("#", "|", "<")):
            collected.append("")
        elif marker := _MARKER.match(line):
            collected.append(line[marker.end() :])
        else:
            collected[-1] = f"{collected[-1]} {line}".lstrip()
    return [paragraph for paragraph in collected if paragraph]


def sentences(page: str) -> list[str]:
    """Sentences of a page, those of fewer than `LEAST` words left out."""
    parts = (part for paragraph in paragraphs(page) for part in _END.split(paragraph))
    return [part for part in parts if len(part.split()) >= LEAST]


def long_ones(listed: list[str]) -> list[str]:
    """Sentences that are not short."""
    return [sentence for sentence in listed if len(sentence.split()) >= WORDS]


def turned(listed: list[str]) -> list[str]:
    """Sentences that begin with "Of": their subject comes behind what it is a part of."""
    return [sentence for sentence in listed if re.match(r"[*_(\"]*Of\b", sentence)]


def is_short(listed: list[str]) -> bool:
    """Whether at least nine sentences in ten are short."""
    return len(long_ones(listed)) * ONE_IN <= len(listed)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if name(page) not in NOT_YET], ids=name)
def test_sentences_are_short_and_begin_with_their_subject(page: Path) -> None:
    listed = sentences(page.read_text(encoding="utf-8"))
    assert turned(listed) == []
    assert is_short(listed), long_ones(listed)


def test_pages_that_are_not_yet_rewritten_need_it() -> None:
    for page in NOT_YET:
        listed = sentences((ROOT / page).read_text(encoding="utf-8"))
        assert turned(listed) or not is_short(listed), f"{page} is good by now"


PAGE = """# A title of more than four words

One sentence has some words. Of two words the first
is it. "In quotes it ends." (So it does in brackets.) **A title.** See `a.b` of Sun et al. 2024 for it.

* An item has a sentence, too
  and goes on here

| a table | Of it nothing counts |
```
Of code nothing counts. Nor does this.
```
"""


def test_what_counts_as_a_sentence() -> None:
    listed = sentences(PAGE)
    assert listed == [
        "One sentence has some words.",
        "Of two words the first is it.",
        '"In quotes it ends."',
        "(So it does in brackets.)",
        "See `a.b` of Sun et al. 2024 for it.",
        "An item has a sentence, too and goes on here",
    ]
    assert turned(listed) == ["Of two words the first is it."]


@pytest.mark.parametrize(("long", "short"), [(0, True), (1, True), (2, False), (10, False)])
def test_one_long_sentence_in_ten_is_allowed(long: int, short: bool) -> None:
    listed = sentences(f"{'word ' * 29}word. " * long + f"{'word ' * 28}word. " * (10 - long))
    assert len(listed) == 10
    assert is_short(listed) is short
