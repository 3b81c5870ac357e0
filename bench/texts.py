"""What the comparisons of whole engines say about texts and figures."""

from __future__ import annotations

from typing import Any

Result = dict[str, Any]


def compare_texts(run: Result, reference: Result) -> dict[str, Any] | None:
    """How many answers have the same tokens, and where the others differ first."""
    if "output_ids" not in run or "output_ids" not in reference:
        return None
    pairs = list(zip(run["output_ids"], reference["output_ids"], strict=True))
    return {"same": sum(a == b for a, b in pairs), "of": len(pairs), "first_difference": [differs(*p) for p in pairs]}


def differs(tokens: list[int], reference: list[int]) -> int | None:
    """The first place where two answers differ."""
    length = min(len(tokens), len(reference))
    place = next((i for i in range(length) if tokens[i] != reference[i]), length)
    return None if tokens == reference else place


def share(texts: Result | None) -> str:
    """Texts as "8/8", with the places of the first differences."""
    if texts is None:
        return "-"
    places = [str(place) for place in texts["first_difference"] if place is not None]
    return f"{texts['same']}/{texts['of']}" + (f", others differ from token {', '.join(places)} on" if places else "")


def last_line(error: str) -> str:
    """Of a traceback."""
    return (error.strip().splitlines() or [""])[-1].replace("|", "/")[:160]


def number(value: float | None) -> str:
    """Three or four figures."""
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
