"""README's first picture: a configuration becomes a wheel, and a serving engine runs it around its own forwards.

    python docs/site/overview.py

writes docs/assets/overview.svg and overview-dark.svg.
"""

from __future__ import annotations

from drawing import Picture, write

WIDTH, HEIGHT, LEFT = 480, 424, 16
CONFIG = ("algorithm", "models", "batch sizes", "GPUs")
PASSES = ("expand-algorithm", "prune-dead-dataflow", "select-verify", "form-kernels", "plan-memory", "plan-graphs")
"""Some of the compiler's passes, in their order."""
WHEEL = ("kernels", "machine code", "plan", "runtime")
STEP = (("prepare", 74), ("draft forward", 80), ("top-k", 64), ("target forward", 88), ("verify", 74))
"""Parts of a decode step, and pixels; forwards are the engine's."""
PAD, GAP, TOP, TALL, PART = 10, 8, 34, 156, 48
"""Pixels within a box and between parts; where the first row begins, how tall it is, and how tall a part is."""
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
TOLD = (
    "specc compiles a configuration into a wheel. A serving engine imports it: the program is what runs around the "
    "engine’s draft and target forwards."
)


class Overview(Picture):
    """Boxes and arrows."""

    def titled(self, x: float, y: float, width: float, tall: float, title: str, edge: str) -> None:
        """Draw a box with a title in it."""
        self.box(x, y, width, tall, "none", edge)
        self.text(x + PAD, y + 24, title, "text" if edge == "edge" else edge, font_weight="600")

    def listed(self, x: float, width: float, title: str, words: tuple[str, ...], edge: str, **more: str) -> None:
        """Draw a box of the first row: a title, and words one below the other."""
        self.titled(x, TOP, width, TALL, title, edge)
        for index, line in enumerate(words):
            self.text(x + PAD, TOP + 48 + 19 * index, line, "text", 14, **more)

    def arrow(self, x: float, y: float, right: float = 0, down: float = 0) -> None:
        """Draw an arrow from a point, to the right or down."""
        head = "m-6 -5l6 5l-6 5" if right else "m-5 -6l5 6l5 -6"
        path = f'd="M{x:g} {y:g}l{right:g} {down:g}{head}"'
        self.shapes.append(f'<path {path} fill="none" stroke="{self.colours["soft"]}" stroke-width="2"/>')

    def part(self, x: float, y: float, name: str, width: float) -> None:
        """Draw a part of a step, its words one below the other."""
        words = name.split()
        fill, ink = ("block", "text") if words[-1] == "forward" else ("program", "paper")
        self.box(x, y, width, PART, fill)
        for index, word in enumerate(words):
            middle = y + PART / 2 + 5 + 18 * (index - (len(words) - 1) / 2)
            self.text(x + width / 2, middle, word, ink, 15, text_anchor="middle")


def build(picture: Overview) -> None:
    """Draw the configuration, the compiler and the wheel."""
    picture.listed(LEFT, 114, "eagle.yaml", CONFIG, "edge")
    picture.arrow(132, TOP + TALL / 2, right=12)
    picture.listed(146, 180, "specc", PASSES, "program", font_family=MONO)
    picture.arrow(328, TOP + TALL / 2, right=12)
    picture.listed(342, 122, "wheel", WHEEL, "program")


def serve(picture: Overview, y: float) -> None:
    """Draw the engine, and in it a step of the program."""
    picture.titled(LEFT, y, WIDTH - 2 * LEFT, 162, "SGLang, vLLM, or an engine of your own", "edge")
    picture.text(LEFT + PAD, y + 46, "requests, scheduler, attention, weights, KV memory", "text", 14)
    x, top = float(LEFT + 18), y + 84
    picture.text(x, top - 10, "a decode step of the program", "program", 14)
    for name, width in STEP:
        picture.part(x, top, name, width)
        x += width + GAP
    (_, first), (_, draft), (_, topk), *_ = STEP
    begin = LEFT + 18 + first + GAP
    picture.box(begin, top + PART + 6, draft + GAP + topk, 2, "soft")
    middle = begin + (draft + GAP + topk) / 2
    picture.text(middle, top + PART + 23, "once a draft token", "soft", 14, text_anchor="middle")


def draw(colours: dict[str, str]) -> str:
    """The picture in the colours of a theme."""
    picture = Overview(colours, WIDTH, HEIGHT)
    picture.text(LEFT, 22, "Once, on any machine: compiling needs no GPU", "soft", 14)
    build(picture)
    picture.text(LEFT, TOP + TALL + 28, "In every server: it imports the wheel", "soft", 14)
    picture.arrow(403, TOP + TALL + 2, down=34)
    serve(picture, TOP + TALL + 38)
    for x, colour, words in ((LEFT, "program", "specc’s"), (110, "block", "the engine’s")):
        picture.box(x, HEIGHT - 22, 14, 14, colour)
        picture.text(x + 22, HEIGHT - 10, words, "text", 14)
    return picture.svg(TOLD)


if __name__ == "__main__":
    write("overview", draw)
