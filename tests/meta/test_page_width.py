"""Pages can be read in a terminal, and in a difference."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/*.md"), *ROOT.glob("examples/**/*.md")]
)
COLUMNS = 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_line_is_long(page: Path) -> None:
    """But for rows of tables, and what is printed or typed."""
    code, long = False, list[str]()
    for line in page.read_text(encoding="utf-8").splitlines():
        code ^= line.lstrip().startswith("```")
        if len(line) > COLUMNS and not code and not line.lstrip().startswith("|"):
            long.append(line)
    assert long == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_list_in_a_list_is_one_on_the_site_too(page: Path) -> None:
    """The site's Markdown asks for four columns, where others are content with two."""
    code, flat = False, list[str]()
    for line in page.read_text(encoding="utf-8").splitlines():
        code ^= line.lstrip().startswith("```")
        indent = len(line) - len(line.lstrip())
        if not code and line.lstrip().startswith("* ") and indent % 4:
            flat.append(line)
    assert flat == []
