"""A page in a browser, and what it complained of."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Page

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
"""Where pictures of the pages are left, to be looked at."""

UNMARKED = """() => [...document.querySelectorAll("*")].filter(element => {
  const style = getComputedStyle(element)
  const scrolls = ["auto", "scroll"].includes(style.overflowX) && element.scrollWidth > element.clientWidth + 1
  const shown = element.checkVisibility({opacityProperty: true, visibilityProperty: true})
  return shown && scrolls && !/100% - [1-9]/.test(style.maskImage)
}).map(element => `${element.tagName} ${element.className}: ${element.textContent.trim().slice(0, 40)}`)"""


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

    def unmarked(self) -> list[str]:
        """What scrolls sideways and does not fade at the edge behind which more of it is."""
        return self.page.evaluate(UNMARKED)

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window: a reader would have to scroll sideways."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
