"""A picture of what runs: forwards as wide blocks, launches as narrow ones, in order, under their phases."""

from __future__ import annotations

from itertools import groupby

from markupsafe import Markup

from specc.compiler.driver.summary import counted
from specc.compiler.explain.page.model import Page
from specc.compiler.explain.page.svg import box, element, line, picture, text
from specc.compiler.explain.program import PlacedNode, does, is_forward
from specc.runtime.plan.nodes import OUTSIDE, Collective, External, Launch, Node, Reference

FORWARD, NARROW, GAP, HEIGHT, TOP, LEFT = 104, 30, 6, 160, 34, 8
"""Pixels: widths of a short forward and of anything else, what is between two, height, room above and beside."""
WIDEST = 168
"""Pixels of a forward whose name is long."""

_LETTER, _STRONG = 7.0, 8.2
"""Pixels of a letter, at most, and of one in bold."""


def timeline(page: Page, entry: str, name: str, title: str) -> Markup:
    """The nodes of an entry. Widths are not times: nobody measured any."""
    steps, inside = page.of(entry), list[Markup]()
    x = float(LEFT)
    longest = max((len(step.node.name) for step in steps if isinstance(step.node, OUTSIDE)), default=0)
    forward = min(WIDEST, max(FORWARD, longest * _STRONG + 12))
    for phase, members in groupby(steps, key=lambda step: step.phase.name):
        begins, wanted = x, len(phase) * _LETTER + 4
        for step in members:
            width = forward if isinstance(step.node, OUTSIDE) else NARROW
            inside.append(_block(page, step, x, width))
            x += width + GAP
        x = max(x, begins + wanted + GAP)
        inside += [line(begins, TOP - 8, x - GAP, TOP - 8, "span"), text(begins, TOP - 14, phase, "soft")]
    forwards = sum(is_forward(step.node) for step in steps)
    caption = f"{forwards} forwards of the engine and {len(steps) - forwards} other nodes in order: "
    caption += ", ".join(step.node.name for step in steps)
    return picture(name, title, caption, (x - GAP + LEFT, TOP + HEIGHT + 6), inside)


def _block(page: Page, step: PlacedNode, x: float, width: float) -> Markup:
    node = step.node
    middle, bottom = x + width / 2, TOP + HEIGHT
    block = box(x, TOP, width, HEIGHT, kind_of(node), hint(page, step))
    if isinstance(node, OUTSIDE):
        capture = node.capture if isinstance(node, External) else None
        mode = "" if capture in (None, "null") else f"captures {capture}"
        kind = f"on-{kind_of(node)}"
        lines = [text(middle, TOP + HEIGHT / 2 + 4, _cut(node.name, width - 8, _STRONG), f"{kind} strong", "middle")]
        lines += [text(middle, TOP + HEIGHT / 2 + 22, mode, kind, "middle")] if mode else []
    else:
        up = f"rotate(-90 {middle + 4} {bottom - 8})"
        words = _cut(node.name, HEIGHT - 16)
        lines = [element("text", words, x=middle + 4, y=bottom - 8, transform=up, class_=f"t on-{kind_of(node)}")]
    return element("a", block, *lines, href=f"#node-{node.name}")


def kind_of(node: Node) -> str:
    """The class of a node."""
    if isinstance(node, External):
        return "host" if node.host else "forward"
    return {"given": "forward", "reference": "torch"}.get(node.kind, node.kind)


def hint(page: Page, step: PlacedNode) -> str:
    """What is said where a pointer rests on a node."""
    node = step.node
    if isinstance(node, Launch):
        return f"{node.name}: {counted(call.op for call in node.ops)}; {step.bytes:,} bytes. {page.why(node.name)}"
    if isinstance(node, Reference):
        return f"{node.name}: {node.ops[-1].op}, computed by torch; {step.bytes:,} bytes. {page.why(node.name)}"
    if isinstance(node, Collective):
        return f"{node.name}: {page.plan.ranks} ranks give each other records of {step.bytes:,} bytes"
    operands = node.operands if isinstance(node, External) else {}
    reads = f"; reads {', '.join(operands)}" if operands else ""
    return f"{node.name}: {does(node)}{reads}"


def _cut(name: str, room: float, letter: float = _LETTER) -> str:
    """A name that has room in so many pixels."""
    most = int(room / letter)
    return name if len(name) <= most else f"{name[: most - 1]}…"
