"""Ranks of a server compare what they are about to run: each runs the same program, and nothing of a step is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def difference(of_ranks: Sequence[Mapping[str, object]]) -> str | None:
    """Return in words what ranks are about to do otherwise than each other; None where all do the same.

    `of_ranks`: by rank what it does, by names that all of them have.
    """
    for name in of_ranks[0]:
        values = [facts[name] for facts in of_ranks]
        if any(value != values[0] for value in values):
            listed = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
            return f"ranks would not run the same steps: {name} is {listed}"
    return None
