"""The page of `specc report` in a browser: of a chain, a tree, a look-up, a block, and a difference."""

from __future__ import annotations

from pathlib import Path

import pytest
from seen import Seen
from typer.testing import CliRunner

from specc.cli.main import app

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGES = {
    "chain": ("eagle-chain",),
    "tree": ("eagle-tree-sampled-wide",),
    "look-up": ("ngram-tree",),
    "block": ("dflash-chain",),
    "ranks": ("eagle3-tree-sharded",),
    "difference": ("eagle-tree", "--against", "eagle-chain"),
}


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages, by name."""
    folder = tmp_path_factory.mktemp("pages")
    for name, words in PAGES.items():
        files = [word if word.startswith("-") else str(EXAMPLES / f"{word}.yaml") for word in words]
        done = CliRunner().invoke(app, ["report", *files, "-o", str(folder / f"{name}.html")])
        assert done.exit_code == 0, done.output
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_it_reads_well(name: str, scheme: str, pages: dict[str, Path], seen: Seen) -> None:
    seen.page.emulate_media(color_scheme=scheme)
    seen.page.goto(pages[name].as_uri())
    seen.shoot(f"report-{name}-{scheme}")
    assert seen.page.locator("h1").count() == 1
    assert seen.page.locator("h2").all_inner_texts()[0] == "A decode step"
    assert seen.overflow() <= 0
    for summary in seen.page.locator("summary").all():
        summary.click()
    assert seen.overflow() <= 0
    assert seen.unmarked() == []
    seen.shoot(f"report-{name}-{scheme}-open")
    assert seen.complaints == []


SECTIONS = [
    "A decode step",
    "What was removed",
    "What is carried, and why",
    "How drafts are made",
    "Memory",
    "Decisions",
]


@pytest.mark.parametrize("name", ["tree", "difference"])
def test_a_block_leads_to_its_row(name: str, pages: dict[str, Path], seen: Seen) -> None:
    seen.page.goto(pages[name].as_uri())
    headings = [text for text in seen.page.locator("h2").all_inner_texts() if not text.startswith("Difference")]
    assert headings == [*SECTIONS, "Costs by bucket", "Configuration"]
    seen.page.locator("svg a[href='#node-target']").click()
    assert seen.page.url.endswith("#node-target")
    assert seen.page.locator("tr:target").inner_text().startswith("target")
    assert 0 <= seen.page.locator("tr:target").bounding_box()["y"] < 900
    assert seen.complaints == []


FADES = "scroll => ['--before', '--behind'].map(name => getComputedStyle(scroll).getPropertyValue(name) !== '0px')"
"""Whether what scrolls fades at its left edge, and at its right one."""


def test_pictures_fade_where_they_go_on(pages: dict[str, Path], seen: Seen) -> None:
    seen.page.goto(pages["tree"].as_uri())
    picture = seen.page.locator(".scroll", has=seen.page.locator("svg")).first
    width = picture.evaluate("scroll => scroll.scrollWidth - scroll.clientWidth")
    assert (width > 1) is (seen.page.viewport_size["width"] < 640)
    fades = []
    for share in (0, 0.5, 1):
        picture.evaluate("(scroll, left) => { scroll.scrollLeft = left }", share * width)
        seen.page.wait_for_function("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        fades.append(picture.evaluate(FADES))
    assert fades == ([[False, True], [True, True], [True, False]] if width > 1 else [[False, False]] * 3)


def test_dark_is_dark(pages: dict[str, Path], seen: Seen) -> None:
    seen.page.goto(pages["chain"].as_uri())
    paper = "getComputedStyle(document.body).backgroundColor"
    shown = []
    for scheme in ("light", "dark"):
        seen.page.emulate_media(color_scheme=scheme)
        shown.append(seen.page.evaluate(paper))
    assert shown == ["rgb(255, 255, 255)", "rgb(20, 22, 27)"]
