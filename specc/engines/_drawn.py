"""What programs carry of drafts that are weighed by what they were drawn from, by the names of their fields."""

from __future__ import annotations

from typing import Any

LOGITS, MASS = "draft_logits", "draft_mass"
"""The logits, and what makes probabilities of them, with the number of the draft behind, or of the block's only one."""
GREEDY = 1e-6
"""A temperature below that draws nothing."""


def weighs(plan: Any) -> bool:
    """Whether a program carries what drafts were drawn from."""
    return any(name.startswith(MASS) for name in plan.carry)
