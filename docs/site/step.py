"""README's picture: a decode step of SGLang's own beside one of a program, from a row of docs/sglang-figures.md.

    python docs/site/step.py

writes docs/assets/step.svg and step-dark.svg. What is drawn to scale are counts of launches and the two bars.
"""

from __future__ import annotations

import re

from drawing import DOCS, Picture, write

ROW = "EAGLE chain, 8 B | 1 |"
FORWARDS = (("draft", 80), ("verify", 120), ("extend", 62))
"""What runs in a graph of SGLang's, and pixels."""
DRAFTS = 2
"""Forwards of the draft in a step of three drafts; one was made by the step before."""
WIDTH, HEIGHT, LEFT, PITCH, TALL = 496, 390, 16, 4, 44


def measured() -> dict[str, tuple[float, float]]:
    """Figures of SGLang and of the program, by column of the table."""
    (line,) = (line for line in (DOCS / "sglang-figures.md").read_text().splitlines() if line.startswith(f"| {ROW}"))
    rate, launches, between, glue, busy = re.findall(r"\| (\d[\d., ]*?) (?=\|)", line)[1:]
    pairs = {"launches": launches, "between": between, "glue": glue, "busy": busy}
    values = {name: tuple(float(figure) for figure in pair.split(", ")) for name, pair in pairs.items()}
    return {"rate": (1.0, float(rate)), **{name: (pair[0], pair[1]) for name, pair in values.items()}}


class Step(Picture):
    """Launches and forwards from left to right."""

    def ticks(self, x: float, y: float, count: int, colour: str) -> float:
        """Launches one after the other; returns where the next thing begins."""
        for index in range(count):
            self.box(x + PITCH * index, y, 2, TALL, colour)
        return x + PITCH * count

    def forward(self, x: float, y: float, name: str, width: float) -> float:
        """A forward; returns where the next thing begins."""
        self.box(x, y, width, TALL, "block")
        self.text(x + width / 2, y + TALL / 2 + 5, name, "text", 14, text_anchor="middle")
        return x + width + PITCH


def before(picture: Step, y: float, launches: int, between: int) -> None:
    """A step of three graphs: launches stand before, between and behind them."""
    outside = launches - between - len(FORWARDS)
    counts = (outside - outside // 2, between // 2, between - between // 2, outside // 2)
    x = float(LEFT)
    for count, (name, width) in zip(counts, FORWARDS, strict=False):
        x = picture.forward(picture.ticks(x, y, count, "engine") + 2, y, name, width)
    picture.ticks(x, y, counts[-1], "engine")


def after(picture: Step, y: float, launches: int) -> None:
    """A step of one graph, in which the program's launches are, and what the scheduler launches beside it."""
    x = start = picture.ticks(LEFT, y, launches - 2, "engine") + 8
    (_, width), *others = FORWARDS
    x = picture.ticks(x + 4, y, 1, "program")
    for name, wide in [("draft", width / 2 + 4)] * DRAFTS + others:  # one launch behind each forward
        x = picture.ticks(picture.forward(x, y, name, wide), y, 1, "program")
    picture.box(start, y - 5, x - start + 2, TALL + 10, "none", "program")
    picture.text((start + x) / 2, y + TALL + 22, "one CUDA graph", "program", 14, text_anchor="middle")
    picture.ticks(x + 10, y, 1, "engine")


def bars(picture: Step, y: float, sides: tuple[float, float]) -> None:
    """Glue in microseconds, to scale."""
    scale, at = 400 / max(sides), LEFT
    for index, (value, colour) in enumerate(zip(sides, ("engine", "program"), strict=True)):
        picture.box(at, y + 26 * index, scale * value, 18, colour)
        picture.text(at + scale * value + 8, y + 26 * index + 14, f"{value:g} µs", "text", 14)


def draw(colours: dict[str, str]) -> str:
    """The picture in the colours of a theme."""
    figures, picture = measured(), Step(colours, WIDTH, HEIGHT)
    (sglang, program), (between, none), glue = (figures[name] for name in ("launches", "between", "glue"))
    assert none == 0
    picture.text(LEFT, 28, "SGLang’s own step", size=16, font_weight="600")
    picture.text(LEFT, 48, f"{sglang:g} launches by the host, {between:g} of them between the forwards", "soft")
    before(picture, 60, int(sglang), int(between))
    picture.text(LEFT, 142, "The same server with a program of specc", size=16, font_weight="600")
    picture.text(LEFT, 162, f"{program:g} launches by the host, none between the forwards", "soft")
    after(picture, 180, int(program))
    picture.text(LEFT, 280, "Glue on the GPU, per step", size=16, font_weight="600")
    bars(picture, 292, glue)
    picture.text(LEFT, HEIGHT - 28, "Measured: EAGLE chain at the sizes of an 8B model, batch 1,", "soft", 14)
    picture.text(LEFT, HEIGHT - 8, "one H100, SGLang’s default attention", "soft", 14)
    description = f"{sglang:g} launches and {glue[0]:g} microseconds of glue before, {program:g} and {glue[1]:g} after"
    return picture.svg(f"A decode step: {description}")


if __name__ == "__main__":
    write("step", draw)
