"""The page itself: well-formed, complete, reachable, legible, the same bytes for the same input."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from told_pages import CASES, page_of, plan_of

from specc.compiler.explain.brief import sized
from specc.compiler.explain.page.page import render

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
SIZE = re.compile(r"([\d,.]+) (bytes|[KMG]iB)")
CSS = (Path(__file__).parents[4] / "specc/compiler/explain/page/page.css").read_text()
VOID = {"meta", "link", "br", "wbr", "img", "input", "hr"}


class Outline(HTMLParser):
    """What a page is made of; raises where an element is not closed by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} has an attribute twice"
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.words.setdefault(self.open[-1], []).append(" ".join(data.split()))


@pytest.fixture(scope="module", params=[*CASES, "difference"])
def text(request: pytest.FixtureRequest) -> str:
    if request.param == "difference":
        return render(page_of("eagle_tree"), page_of("standalone_chain"))
    return render(page_of(request.param))


def test_it_is_well_formed(text: str) -> None:
    outline = Outline(text)
    ids = Counter(attrs["id"] for _, attrs in outline.tags if "id" in attrs)
    assert {name for name, times in ids.items() if times > 1} == set()
    links = {attrs["href"] for tag, attrs in outline.tags if tag == "a"}
    assert {link for link in links if link[1:] not in ids or not link.startswith("#")} == set()
    labels = [name for _, attrs in outline.tags for name in attrs.get("aria-labelledby", "").split()]
    assert set(labels) <= ids.keys()


def test_it_needs_nothing_from_outside(text: str) -> None:
    outline = Outline(text)
    assert "script" not in {tag for tag, _ in outline.tags}
    used = [attrs.get(name, "") for _, attrs in outline.tags for name in ("src", "href")]
    assert all(address == "" or address.startswith(("#", "data:")) for address in used)
    assert "url(" not in text
    assert "@import" not in text


def test_headings_tables_and_pictures_say_what_they_are(text: str) -> None:
    outline = Outline(text)
    headings = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[:2] == [1, 2]
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    tags = Counter(tag for tag, _ in outline.tags)
    assert tags["table"] == tags["caption"] == tags["thead"]
    pictures = [attrs for tag, attrs in outline.tags if tag == "svg" and attrs.get("role") == "img"]
    assert len(pictures) == tags["desc"] == 4
    assert all("aria-hidden" in attrs or "aria-labelledby" in attrs for tag, attrs in outline.tags if tag == "svg")


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (57_344, "56 KiB"),
        (200_000, "195 KiB"),
        (5 << 40, "5,120 GiB"),
    ],
)
def test_bytes_have_the_unit_that_is_short(count: int, words: str) -> None:
    assert sized(count) == words


@pytest.mark.parametrize("name", CASES)
def test_its_numbers_are_those_of_the_plan(name: str) -> None:
    text, plan = render(page_of(name)), plan_of(name)
    words = Outline(text).words
    most = plan["totals"][str(plan["buckets"][-1])]
    cards = words["dd"]
    sizes = [float(match[1].replace(",", "")) * UNITS[match[2]] for card in cards if (match := SIZE.fullmatch(card))]
    for key in ("vocab_bytes_read", "hidden_state_bytes", "arena_bytes"):
        assert min(abs(size - most[key]) for size in sizes) <= 0.05 * most[key], (key, most[key], sizes)
    assert str(most["launches_in_graph"] + most["launches_outside_graph"]) in cards
    for total in plan["totals"].values():
        assert {f"{value:,}" for value in total.values()} <= set(words["td"])
    names = {node["name"] for phase in plan["phases"] for node in phase["nodes"]}
    assert all(f'id="node-{node}"' in text for node in names)


def test_every_decision_is_there_with_what_was_rejected() -> None:
    page = page_of("sampled_tree")
    shown = " ".join(word for words in Outline(render(page)).words.values() for word in words)
    for pass_story in page.story.passes:
        assert all(remark.message in shown for remark in pass_story.remarks if remark.choice is None)
    for _, remark, choice in page.story.choices():
        assert choice.reason in shown
        assert (remark.place or "") in shown
        assert all(rejected.what in shown and rejected.reason in shown for rejected in choice.rejected)


def test_names_are_escaped() -> None:
    from specc.compiler.explain.page.svg import element, text

    assert element("text", "<a & b>", title='"') == '<text title="&#34;">&lt;a &amp; b&gt;</text>'
    assert "<b>" not in text(0, 0, "<b>")


def test_the_same_bytes_for_the_same_input(tmp_path: Path) -> None:
    example = Path(__file__).parents[4] / "examples/llama-8b-eagle.yaml"
    pages = set()
    for seed in ("1", "2"):
        out = tmp_path / seed / "page.html"
        out.parent.mkdir()
        words = [sys.executable, "-m", "specc", "report", str(example), "-o", str(out)]
        subprocess.run(words, check=True, env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(example.parents[1])})
        pages.add(out.read_bytes())
    assert len(pages) == 1


def colours(scheme: str) -> dict[str, str]:
    """The colours of light or dark."""
    light, dark = CSS.split("@media (prefers-color-scheme: dark)")
    return dict(re.findall(r"--([\w-]+): (#\w{6});", light if scheme == "light" else dark.split("\n}\n")[0]))


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible(scheme: str) -> None:
    palette = colours(scheme)
    on_paper = [(word, ground) for word in ("ink", "soft", "link") for ground in ("paper", "raised")]
    filled = ("launch", "collective", "torch", "host", "root", "draft", "carried", "kept", "value")
    pairs = [*on_paper, *[("on-dark", kind) for kind in filled], ("on-light", "scratch"), ("on-light", "forward")]
    for word, ground in pairs:
        high, low = sorted((luminance(palette[word]), luminance(palette[ground])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{word} on {ground}"
