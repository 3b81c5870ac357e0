"""What the pictures of docs/assets share: colours, shapes, and a file for light pages beside one for dark pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
THEMES = {
    "": {"text": "#1f2328", "soft": "#59636e", "block": "#d1d9e0", "edge": "#818b98", "paper": "#ffffff",
         "engine": "#bc4c00", "program": "#0969da"},
    "-dark": {"text": "#f0f6fc", "soft": "#9198a1", "block": "#3d444d", "edge": "#656c76", "paper": "#0d1117",
              "engine": "#f0883e", "program": "#58a6ff"},
}  # fmt: skip
"""Colours by the end of a file's name. ``program`` is what specc makes, ``block`` a forward of the engine's, and
``engine`` what the engine launches around its forwards by itself."""
LETTERS = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


class Picture:
    """Shapes of an SVG, in the order in which they are drawn; lengths are its pixels."""

    def __init__(self, colours: dict[str, str], width: int, height: int) -> None:
        """An empty picture in the colours of a theme."""
        self.colours, self.width, self.height, self.shapes = colours, width, height, list[str]()

    def text(self, x: float, y: float, words: str, colour: str = "text", size: int = 15, **more: str) -> None:
        """Draw words that begin at a point, or stand about it."""
        attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        fill = self.colours[colour]
        self.shapes.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}"{attributes}>{words}</text>')

    def box(self, x: float, y: float, width: float, tall: float, colour: str, edge: str | None = None) -> None:
        """Draw a rectangle."""
        stroke = f' stroke="{self.colours[edge]}" stroke-width="1.5"' if edge else ""
        fill = self.colours[colour] if colour != "none" else "none"
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{tall:g}" rx="2" fill="{fill}"{stroke}/>'
        )

    def svg(self, title: str) -> str:
        """The text of the file."""
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}" '
        head += f'font-family="{LETTERS}">'
        return "\n".join((head, f"<title>{title}</title>", *self.shapes, "</svg>", ""))


def write(name: str, draw: Callable[[dict[str, str]], str]) -> None:
    """Write a picture in every theme into docs/assets."""
    for suffix, colours in THEMES.items():
        (DOCS / "assets" / f"{name}{suffix}.svg").write_text(draw(colours))
