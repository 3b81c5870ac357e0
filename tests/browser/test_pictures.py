"""Pictures of the documentation: words stay in their boxes, and are large enough on a telephone."""

from __future__ import annotations

from pathlib import Path

import pytest
from seen import Seen

ASSETS = Path(__file__).parents[2] / "docs" / "assets"
NARROW = 358
"""Pixels of a picture's width in a window of 390."""
SPILLED = """() => {
  const svg = document.documentElement
  const edges = shape => {
    const {x, y, width, height} = shape.getBBox()
    return {x, y, right: x + width, low: y + height}
  }
  const inside = (point, box) => box.x <= point.x && point.x <= box.right && box.y <= point.y && point.y <= box.low
  const whole = {x: 0, y: 0, right: svg.viewBox.baseVal.width, low: svg.viewBox.baseVal.height}
  const boxes = [whole, ...[...svg.querySelectorAll("rect")].map(edges)]
  return [...svg.querySelectorAll("text")].filter(text => {
    const words = edges(text)
    const middle = {x: (words.x + words.right) / 2, y: (words.y + words.low) / 2}
    return boxes.filter(box => inside(middle, box)).some(box => words.x < box.x || words.right > box.right)
  }).map(text => text.textContent)
}"""
"""Words that cross an edge of a box in which their middle is, or of the picture."""


@pytest.mark.parametrize("name", [path.name for path in sorted(ASSETS.glob("*.svg"))])
def test_words_are_read(name: str, seen: Seen) -> None:
    seen.page.goto((ASSETS / name).as_uri())
    assert seen.page.evaluate(SPILLED) == []
    sizes = seen.page.locator("text").evaluate_all("all => all.map(text => Number(text.getAttribute('font-size')))")
    width = seen.page.evaluate("document.documentElement.viewBox.baseVal.width")
    assert min(sizes) * NARROW / width > 10
    assert seen.complaints == []


def test_a_word_that_spills_is_noticed(seen: Seen, tmp_path: Path) -> None:
    text = (ASSETS / "overview.svg").read_text()
    (tmp_path / "wide.svg").write_text(
        text.replace(">machine code<", ">machine code of it<").replace(">verify<", ">verification<")
    )
    seen.page.goto((tmp_path / "wide.svg").as_uri())
    assert seen.page.evaluate(SPILLED) == ["machine code of it", "verification"]
