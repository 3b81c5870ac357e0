"""A headless Chromium at two widths, in which a page that complains or needs anything from outside fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from folder_items import items_below
from seen import Seen

playwright = pytest.importorskip("playwright.sync_api")

WIDTHS = (1280, 390)
"""Pixels of a desktop's window and of a telephone's."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a browser; it is left out without ``-m browser``, for its event loop stops those of commands."""
    for item in items_below(Path(__file__).parent, items):
        item.add_marker(pytest.mark.browser)
        if "browser" not in config.getoption("markexpr"):
            item.add_marker(pytest.mark.skip(reason="needs a browser: run `make browser`"))


@pytest.fixture(scope="session")
def chromium() -> Iterator[playwright.Browser]:
    """The system's Chromium, without a window and without calls home."""
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    if binary is None:
        pytest.fail("no Chromium here: install the system's package, as `make browser` does")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=binary, args=quiet)
        yield browser
        browser.close()


@pytest.fixture(params=WIDTHS)
def seen(chromium: playwright.Browser, request: pytest.FixtureRequest) -> Iterator[Seen]:
    """An empty page of each width; what it logs, throws or fails to load is kept."""
    page = chromium.new_page(viewport={"width": request.param, "height": 900})
    seen = Seen(page)
    page.on(
        "console",
        lambda message: seen.complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("requestfailed", lambda failed: seen.complaints.append(f"{failed.url}: {failed.failure}"))
    page.on(
        "response",
        lambda response: (
            seen.complaints.append(f"{response.url}: {response.status}") if response.status >= 400 else None
        ),
    )
    yield seen
    page.close()
