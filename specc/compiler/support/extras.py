"""What is told of the extras of specc's distribution, which no index has."""

from __future__ import annotations


def how_to_get(extra: str) -> str:
    """How to install what an extra of `pyproject.toml` names."""
    return f"in the clone of specc, pip install '.[{extra}]'"
