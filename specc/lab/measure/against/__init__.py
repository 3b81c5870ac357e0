"""A step beside the same work of an engine's own kernels, on the same tensors; greedy steps alone have that."""

from __future__ import annotations

from enum import StrEnum


class Against(StrEnum):
    """Whose kernels are on the other side; ``auto``: those that can be imported here."""

    none = "none"
    sglang = "sglang"
    auto = "auto"
