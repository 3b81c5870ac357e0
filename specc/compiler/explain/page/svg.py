"""Elements of a picture as text. Colours are classes, which the page gives for light and for dark."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup


def element(tag: str, *inside: str, **attrs: object) -> Markup:
    """An element; ``class_`` is its class, other underscores are dashes. Text inside is escaped, elements are not."""
    words = "".join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _number(value)) for name, value in attrs.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(tag, Markup(words), Markup("").join(inside))


def picture(name: str, title: str, description: str, size: tuple[float, float], inside: Sequence[str]) -> Markup:
    """A whole picture of a size in pixels: a title, and what it shows in a sentence, for those who do not see it."""
    width, height = size
    head = element("title", title, id=f"{name}-title"), element("desc", description, id=f"{name}-desc")
    return element(
        "svg",
        *head,
        *inside,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        width=width,
        height=height,
    )


def box(x: float, y: float, width: float, height: float, kind: str, hint: str = "", radius: float = 3) -> Markup:
    """A rectangle, and what is said where a pointer rests on it."""
    inside = [element("title", hint)] if hint else []
    return element("rect", *inside, x=x, y=y, width=width, height=height, rx=radius, class_=kind)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> Markup:
    """A line of text."""
    return element("text", words, x=x, y=y, text_anchor=anchor, class_=f"t {kind}".strip())


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "edge") -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def arrow(x1: float, y1: float, x2: float, y2: float, kind: str = "edge") -> Markup:
    """A line to the right or down with a head, that ends at its second point."""
    if y1 == y2:
        head = f"{_number(x2)},{_number(y2)} {_number(x2 - 7)},{_number(y2 - 4)} {_number(x2 - 7)},{_number(y2 + 4)}"
    else:
        head = f"{_number(x2)},{_number(y2)} {_number(x2 - 4)},{_number(y2 - 7)} {_number(x2 + 4)},{_number(y2 - 7)}"
    return line(x1, y1, x2, y2, kind) + element("polygon", points=head, class_="head")


def _number(value: object) -> str:
    """A number with at most one digit behind the point; anything else as text."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
