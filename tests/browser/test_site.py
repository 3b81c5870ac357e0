"""The documentation as a site: every page at both widths, every link and anchor, every diagram, and nothing fetched."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest
from playwright.sync_api import expect
from seen import Seen

ROOT = Path(__file__).parents[2]
SHOWN = ("", "tour/", "tutorial/", "commands/", "architecture/", "semantics/", "disaggregation/", "config/", "sglang/")
"""Pages of which pictures are left."""
OPEN_SHADOWS = """
const attach = Element.prototype.attachShadow
Element.prototype.attachShadow = function (how) { return attach.call(this, {...how, mode: "open"}) }
"""
"""The theme draws diagrams where nobody can look."""


SCALES = "all => all.map(image => image.getBoundingClientRect().width / image.viewBox.baseVal.width)"
"""How much smaller than drawn, in letters of 16 pixels, diagrams are shown."""

LOST = """all => all.filter(cell => cell.textContent.length > 60 && cell.getBoundingClientRect().right > innerWidth)
  .map(cell => cell.textContent)"""
"""Sentences in cells that nobody reads without scrolling a table."""
BROKEN = "all => all.filter(code => code.getClientRects().length > 1).map(code => code.textContent)"


@dataclass
class Html(HTMLParser):
    """What a page links to, what it loads, and which anchors it has."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: list[str] = field(default_factory=list)
    diagrams: int = 0

    def __post_init__(self) -> None:
        """A parser of one page."""
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what an element says."""
        attributes = dict(attrs)
        self.anchors += [
            attributes[key] for key in ("id", "name") if attributes.get(key) and (key == "id" or tag == "a")
        ]
        self.diagrams += tag == "pre" and "mermaid" in (attributes.get("class") or "").split()
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if tag in ("script", "img", "link", "source", "iframe") and attributes.get("rel") != "canonical":
            self.loaded += [attributes[key] for key in ("src", "srcset", "href") if attributes.get(key)]


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a log."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The site, built as `make site` does."""
    if not (ROOT / "build" / "mermaid.min.js").is_file():
        if "browser" in request.config.getoption("-m"):
            pytest.fail("no Mermaid here: `make site` fetches it")
        pytest.skip("no Mermaid here: `make site` fetches it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    place = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=place)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder


@pytest.fixture(scope="session")
def pages(folder: Path) -> dict[str, Html]:
    """Every page by its path in the site."""
    by_path: dict[str, Html] = {}
    for file in sorted(folder.rglob("index.html")):
        by_path[str(file.relative_to(folder)).removesuffix("index.html")] = page = Html()
        page.feed(file.read_text())
    return by_path


@pytest.fixture(scope="session")
def served(folder: Path) -> Iterator[str]:
    """The site on this machine, until the tests end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_every_document_is_a_page(pages: dict[str, Html]) -> None:
    assert {f"{path.stem}/" for path in (ROOT / "docs").glob("*.md")} <= set(pages)
    assert {"", "repository/examples/minimal_engine.py/", "repository/CONTRIBUTING/"} <= set(pages)


def test_every_link_and_anchor_is_there(folder: Path, pages: dict[str, Html]) -> None:
    broken: list[str] = []
    for path, page in pages.items():
        for link in {*page.links, *page.loaded}:
            whole, anchor = urldefrag(urljoin(f"http://site/{path}", link))
            if urlsplit(whole).netloc != "site":
                continue
            there = unquote(urlsplit(whole).path).removeprefix("/")
            exists = there in pages or (folder / there).is_file()
            if not exists or (anchor and unquote(anchor) not in pages[there].anchors):
                broken.append(f"{path}: {link}")
    assert broken == []


def test_no_anchor_stands_twice(pages: dict[str, Html]) -> None:
    assert [path for path, page in pages.items() if len(page.anchors) != len(set(page.anchors))] == []


def test_nothing_is_fetched_from_elsewhere(pages: dict[str, Html]) -> None:
    loaded = {link for page in pages.values() for link in page.loaded}
    assert {link for link in loaded if urlsplit(link).netloc} == set()
    assert len(loaded) > 5


def test_every_page_in_a_browser(seen: Seen, served: str, pages: dict[str, Html]) -> None:
    """Nothing complains, nothing is wider than the window, and diagrams are drawn."""
    seen.page.add_init_script(OPEN_SHADOWS)
    drawn = 0
    for path, page in pages.items():
        seen.page.goto(served + path, wait_until="networkidle")
        expect(seen.page.locator("article h1").first).to_be_visible()
        expect(seen.page.locator("div.mermaid svg")).to_have_count(page.diagrams)
        scales = seen.page.locator("div.mermaid svg").evaluate_all(SCALES)
        assert min(scales, default=1) > 0.6, f"{path}: a diagram is too small to be read"
        assert seen.page.locator("article code.option").evaluate_all(BROKEN) == [], path
        assert seen.page.locator("article td").evaluate_all(LOST) == [], path
        assert seen.unmarked() == [], path
        if path in SHOWN:
            seen.shoot(f"site-{path.strip('/').replace('/', '-') or 'readme'}")
        assert seen.overflow() <= 0, path
        assert seen.complaints == [], path
        drawn += page.diagrams
    assert drawn >= 4


PRESSED = {
    "console": "specc build target_eagle.yaml -o dist\nspecc inspect dist/specc_program_target_eagle-*.whl\n"
    "specc run dist/specc_program_target_eagle-*.whl --target examples/models/target \\\n"
    "    --draft examples/models/eagle --prompt 'class Node:' --max-new-tokens 24 --check",
    "python": None,
    "yaml": None,
}
"""Kinds of blocks on the first page, and what the button of one copies: nothing stands for all that it shows."""


@pytest.mark.parametrize("kind", PRESSED)
def test_buttons_copy_what_is_typed(kind: str, seen: Seen, served: str) -> None:
    seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    seen.page.goto(served)
    expected = PRESSED[kind]
    block = seen.page.locator(f".language-{kind}", has_text=(expected or "").partition("\n")[0]).first
    shown = block.locator("code").inner_text().rstrip()
    block.hover()
    block.get_by_title("Copy to clipboard").click()
    expect(seen.page.get_by_text("Copied to clipboard")).to_be_visible()
    assert seen.page.evaluate("navigator.clipboard.readText()") == (expected or shown)
    assert len(shown.splitlines()) > len((expected or "").splitlines())
    assert seen.complaints == []


def test_it_is_searched_and_dark(seen: Seen, served: str) -> None:
    seen.page.emulate_media(color_scheme="dark")
    seen.page.goto(served)
    expect(seen.page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")
    pictures = seen.page.locator("article picture img")
    shown = pictures.evaluate_all("all => all.map(image => image.naturalWidth && image.currentSrc.split('/').at(-1))")
    assert shown == ["overview-dark.svg", "step-dark.svg"]
    seen.shoot("site-readme-dark")
    seen.page.keyboard.press("/")
    seen.page.get_by_role("textbox", name="Search").press_sequentially("Gumbel")
    expect(seen.page.locator(".md-search-result__link", has_text="Glossary").first).to_be_visible()
    assert seen.complaints == []
