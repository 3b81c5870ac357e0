"""A picture of what runs: forwards as wide blocks, launches as narrow ones, in order, under their phases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from markupsafe import Markup

from specc.explain.report import counted
from specc.explain.story import CollectiveStory, ForwardStory, LaunchStory, ReferenceStory
from specc.report.model import Step
from specc.report.svg import box, element, line, picture, text

FORWARD, NARROW, GAP, HEIGHT, TOP, LEFT = 104, 30, 6, 160, 34, 8
"""Pixels: widths of a short forward and of anything else, what is between two, height, room above and beside."""
WIDEST = 168
"""Pixels of a forward whose name is long."""

_LETTER, _STRONG = 7.0, 8.2
"""Pixels of a letter, at most, and of one in bold."""


def timeline(steps: Sequence[Step], name: str, title: str) -> Markup:
    """The nodes of an entry. Widths are not times: nobody measured any."""
    inside: list[Markup] = []
    x = float(LEFT)
    longest = max((len(step.node.name) for step in steps if isinstance(step.node, ForwardStory)), default=0)
    forward = min(WIDEST, max(FORWARD, longest * _STRONG + 12))
    for phase, members in groupby(steps, key=lambda step: step.phase):
        begins, wanted = x, len(phase) * _LETTER + 4
        for step in members:
            width = forward if isinstance(step.node, ForwardStory) else NARROW
            inside.append(_block(step, x, width))
            x += width + GAP
        x = max(x, begins + wanted + GAP)
        inside += [line(begins, TOP - 8, x - GAP, TOP - 8, "span"), text(begins, TOP - 14, phase, "soft")]
    forwards = sum(is_forward(step) for step in steps)
    told = f"{forwards} forwards of the engine and {len(steps) - forwards} other nodes in order: "
    told += ", ".join(step.node.name for step in steps)
    return picture(name, title, told, (x - GAP + LEFT, TOP + HEIGHT + 6), inside)


def _block(step: Step, x: float, width: float) -> Markup:
    node = step.node
    middle, bottom = x + width / 2, TOP + HEIGHT
    block = box(x, TOP, width, HEIGHT, kind_of(step), said(step))
    if isinstance(node, ForwardStory):
        mode = "" if node.capture in (None, "null") else f"captures {node.capture}"
        kind = f"on-{kind_of(step)}"
        lines = [text(middle, TOP + HEIGHT / 2 + 4, _cut(node.name, width - 8, _STRONG), f"{kind} strong", "middle")]
        lines += [text(middle, TOP + HEIGHT / 2 + 22, mode, kind, "middle")] if mode else []
    else:
        up = f"rotate(-90 {middle + 4} {bottom - 8})"
        words = _cut(node.name, HEIGHT - 16)
        lines = [element("text", words, x=middle + 4, y=bottom - 8, transform=up, class_=f"t on-{kind_of(step)}")]
    return element("a", block, *lines, href=f"#node-{node.name}")


def is_forward(step: Step) -> bool:
    """Whether a node is a model that the engine runs when it is called."""
    return isinstance(step.node, ForwardStory) and step.node.capture is not None


def kind_of(step: Step) -> str:
    """The class of a node."""
    if isinstance(step.node, ForwardStory):
        return "host" if step.node.kind == "external" and step.node.capture is None else "forward"
    if isinstance(step.node, CollectiveStory):
        return "collective"
    return "torch" if isinstance(step.node, ReferenceStory) else "launch"


def said(step: Step) -> str:
    """What is said where a pointer rests on a node."""
    node = step.node
    if isinstance(node, LaunchStory):
        return f"{node.name}: {counted(node.ops)}; {node.bytes:,} bytes. {step.why}"
    if isinstance(node, ReferenceStory):
        return f"{node.name}: {node.op}, computed by torch; {node.bytes:,} bytes. {step.why}"
    if isinstance(node, CollectiveStory):
        return f"{node.name}: {node.ranks} ranks give each other records of {node.bytes:,} bytes"
    reads = f"; reads {', '.join(node.operands)}" if node.operands else ""
    return f"{node.name}: {node.what}{reads}"


def _cut(name: str, room: float, letter: float = _LETTER) -> str:
    """A name that has room in so many pixels."""
    most = int(room / letter)
    return name if len(name) <= most else f"{name[: most - 1]}…"
