"""A page in a browser, and what it complained of."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Page

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
"""Where pictures of the pages are left, to be looked at."""


@dataclass
class Seen:
    """A page, and what it complained of while it was open."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def shoot(self, name: str) -> None:
        """Leave a picture of the whole page in build/screenshots."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        width = self.page.viewport_size["width"]
        self.page.screenshot(path=SHOTS / f"{name}-{width}.png", full_page=True)

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window: a reader would have to scroll sideways."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
