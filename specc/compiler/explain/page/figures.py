"""Pictures of how drafts are made, and of the arena."""

from __future__ import annotations

from itertools import pairwise
from math import log2

from markupsafe import Markup

from specc.compiler.explain.page.drafting import DraftedNode, DraftPicture
from specc.compiler.explain.page.model import Page, extent
from specc.compiler.explain.page.svg import arrow, box, element, line, picture, text
from specc.runtime.plan.plan import Buffer

MOST_DOTS = 60
"""Candidates that are drawn though they were not kept; of more none is."""
WIDE = 1060
"""Pixels that a picture takes if it has to show few things."""
LEVEL, SLOT, DOT = 58, 26, 11
"""Pixels between the levels of a tree, and, at least, of a leaf that was kept and one that was not."""


def drafted(how: DraftPicture) -> Markup:
    """The nodes of a step: a chain or a tree, below a look-up where drafts come from the text."""
    below = 0.0
    inside: list[Markup] = []
    if how.source == "look-up":
        inside, below = _text_strip(how), 96.0
    branches = any(node.parent != place - 1 for place, node in enumerate(how.drawn) if place)
    nodes, width, height = _tree(how, below) if branches else _chain(how, below)
    width = max(width, 352.0) if how.source == "look-up" else width
    return picture("drafted", _title(how), _told(how), (width, height), [*inside, *nodes])


def shows_dropped(how: DraftPicture) -> bool:
    """Whether candidates that were not kept are drawn."""
    return len(how.drawn) - how.nodes <= MOST_DOTS


def _title(how: DraftPicture) -> str:
    return f"{'A tree' if how.topk > 1 else 'A chain'} of {how.nodes} nodes, the root included"


def _told(how: DraftPicture) -> str:
    shape = f"{how.topk} branches of up to {how.num_steps} drafts" if how.topk > 1 else f"{how.num_steps} drafts"
    return f"From the root, {shape}; the target verifies {how.nodes} nodes in one forward."


def _chain(how: DraftPicture, below: float) -> tuple[list[Markup], float, float]:
    """The root and its drafts from left to right, and who makes each."""
    wide, high, gap, top = 112.0, 44.0, 30.0, below + 34.0
    inside: list[Markup] = []
    for place in range(how.num_steps + 1):
        x = 8 + place * (wide + gap)
        inside.append(box(x, top, wide, high, "root" if place == 0 else "draft"))
        inside.append(text(x + wide / 2, top + 27, f"draft {place}" if place else "root", _on(place), "middle"))
        inside.append(text(x + wide / 2, top + high + 18, _maker(how, place), "soft", "middle"))
        if place:
            inside.append(arrow(x - gap, top + high / 2, x - 2, top + high / 2))
    if how.source == "block" and how.makers:
        begins, ends = 8 + wide + gap, 8 + how.num_steps * (wide + gap) + wide
        inside.append(line(begins, top - 10, ends, top - 10, "span"))
        inside.append(text(begins, top - 16, f"one forward, {how.makers[0]}, fills all places", "soft"))
    return inside, 16 + (how.num_steps + 1) * (wide + gap) - gap, top + high + 32


def _on(place: int) -> str:
    return "on-draft strong" if place else "on-root strong"


def _maker(how: DraftPicture, place: int) -> str:
    """Who makes a draft, in a word or two."""
    if place == 0:
        return "the last token"
    if how.source == "look-up":
        return "from the text"
    if place <= how.carried:
        return "carried"
    made = how.makers[min(place - how.carried, len(how.makers)) - 1] if how.makers else ""
    return made if len(made) < 17 else f"{made[:15]}…"


def _tree(how: DraftPicture, below: float) -> tuple[list[Markup], float, float]:
    """Levels from top to bottom; candidates that were not kept are dots, if there are not too many."""
    at = {n: node for n, node in enumerate(how.drawn) if node.column is not None or shows_dropped(how)}
    children: dict[int, list[int]] = {}
    for number, node in at.items():
        children.setdefault(node.parent, []).append(number)
    kept = sum(number not in children and node.column is not None for number, node in at.items())
    left, slot, wide = 118.0, max(SLOT, min(2 * SLOT, WIDE / 2 / max(kept, 1))), dict[int, float]()
    _widths(0, at, children, slot, wide)
    spots: dict[int, tuple[float, float]] = {}
    _spots(0, left, below + 26, children, wide, spots)
    inside = [line(*spots[node.parent], *spots[n], _edge(node)) for n, node in at.items() if n]
    inside += [_node(node, *spots[n]) for n, node in at.items()]
    depth = max(node.depth for node in at.values())
    for level in range(depth + 1):
        inside.append(text(8, below + 30 + level * LEVEL, _level(how, level), "soft"))
    return inside, left + wide[0] + 12, below + 26 + depth * LEVEL + 26


def _widths(
    number: int, at: dict[int, DraftedNode], children: dict[int, list[int]], slot: float, wide: dict[int, float]
) -> None:
    for child in children.get(number, []):
        _widths(child, at, children, slot, wide)
    own = slot if at[number].column is not None else DOT
    wide[number] = max(own, sum(wide[child] for child in children.get(number, [])))


def _spots(
    number: int, x: float, y: float, children: dict[int, list[int]], wide: dict[int, float],
    spots: dict[int, tuple[float, float]],
) -> None:  # fmt: skip
    """The middle of every node: over its children."""
    spots[number] = x + wide[number] / 2, y
    for child in children.get(number, []):
        _spots(child, x, y + LEVEL, children, wide, spots)
        x += wide[child]


def _edge(node: DraftedNode) -> str:
    return "edge" if node.column is not None else "faint"


def _node(node: DraftedNode, x: float, y: float) -> Markup:
    if node.column is None:
        return element("circle", element("title", "a candidate that was not kept"), cx=x, cy=y, r=3, class_="dropped")
    kind = "root" if node.column == 0 else "draft"
    hint = "the root" if node.column == 0 else f"column {node.column}, {node.depth} below the root"
    circle = element("circle", element("title", hint), cx=x, cy=y, r=11, class_=kind)
    return circle + text(x, y + 4, str(node.column), f"on-{kind} small", "middle")


def _level(how: DraftPicture, level: int) -> str:
    if level == 0:
        return "root"
    maker = _maker(how, level)
    return maker if len(maker) < 15 else f"{maker[:13]}…"


def _text_strip(how: DraftPicture) -> list[Markup]:
    """The text with an earlier place that ends as it does now: what followed there is drafted."""
    cell, top, count = 20, 28, 15
    same, follow = 3, min(how.num_steps, 5)
    begins = 3
    inside = [text(8, 16, "text of the request", "soft")]
    for n in range(count):
        matched = begins <= n < begins + same or n >= count - same
        copied = begins + same <= n < begins + same + follow
        kind = "matched" if matched else "draft" if copied else "cell"
        inside.append(box(8 + n * (cell + 2), top, cell, cell, kind, radius=2))
    now, then = 8 + (count - same) * (cell + 2), 8 + begins * (cell + 2)
    longest, shortest = how.lookup["longest"], how.lookup["shortest"]
    inside.append(text(now + same * (cell + 2), 16, "its end", "soft", "end"))
    inside.append(text(then, top + 38, f"{shortest} to {longest} equal tokens, and what followed them", "soft"))
    return inside


KINDS = {
    "carried": "carried from step to step",
    "kept": "kept across steps besides",
    "value": "a value between nodes",
    "scratch": "scratch of one launch",
}
"""Kinds of buffers, for the legend."""


def arena(page: Page) -> Markup:
    """Bytes from top to bottom, nodes from left to right: two buffers side by side share their bytes.

    A piece between two edges of buffers has a height that grows with the logarithm of its bytes.
    """
    left, top = 92.0, 112.0
    column = max(34.0, min(84.0, (WIDE - left) / len(page.steps)))
    edges = sorted({edge for buffer in page.arena for edge in extent(buffer)})
    height = {edges[0]: 0.0} if edges else {0: 0.0}
    for low, high in pairwise(edges):
        height[high] = height[low] + 3.5 + 2.2 * max(0.0, log2((high - low) / 256))
    inside: list[Markup] = []
    for step in page.steps:
        x = left + (step.index - 0.5) * column
        up = f"rotate(-55 {x:.1f} {top - 8:.1f})"
        inside.append(element("text", _short(step.node.name), x=x, y=top - 8, transform=up, class_="t soft"))
    tall = max(height.values())
    prefill = len(page.of("prefill"))
    for buffer in page.arena:
        inside.append(_buffer(page, buffer, left, top, column, height))
    inside.append(line(left + prefill * column, top - 4, left + prefill * column, top + tall, "divide"))
    labelled = -20.0
    for edge in edges:
        if height[edge] - labelled >= 16:
            labelled = height[edge]
            inside.append(text(left - 6, top + height[edge] + 4, f"{edge:,}", "soft", "end"))
    width = left + len(page.steps) * column + 90
    size = page.plan.memory.arena
    caption = f"{len(page.arena)} buffers in {size:,} bytes; {page.reused():,} of them have more than one."
    return picture("arena", "The arena: who has which bytes when", caption, (width, top + tall + 14), inside)


def _short(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:17]}…"


def _buffer(page: Page, buffer: Buffer, left: float, top: float, column: float, height: dict[int, float]) -> Markup:
    (first, last), kind = page.alive(buffer), page.kind(buffer)
    low, high = (height[edge] for edge in extent(buffer))
    x, wide = left + (first - 1) * column, (last - first + 1) * column
    hint = f"{buffer.name}: {buffer.bytes:,} bytes at {buffer.offset:,}, nodes {first} to {last}; {KINDS[kind]}"
    shape = box(x + 0.5, top + low + 0.3, wide - 1, max(high - low - 0.6, 1.5), f"b-{kind}", hint, 1)
    most = int((wide - 8) / 6.2)
    name = buffer.name.rpartition(".")[2] if kind == "scratch" else buffer.name
    if high - low < 14 or most < min(len(name), 8):
        return shape
    name = name if len(name) <= most else f"{name[: most - 1]}…"
    return shape + text(x + 4, top + (low + high) / 2 + 4, name, f"small on-b-{kind}")
