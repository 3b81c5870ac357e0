"""The fields that programs carry of drafts that are weighed by what they were drawn from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LOGITS, MASS = "draft_logits", "draft_mass"
"""The logits, and what makes probabilities of them, with the number of the draft behind, or of the block's only one."""
WEIGH = "sample.weigh"
"""The op that weighs them."""
GREEDY = 1e-6
"""A temperature below that draws nothing."""


def row_fields(fields: Iterable[str]) -> list[tuple[str, str]]:
    """Return the fields of logits and mass of every draft that has them, in the order of the drafts."""
    numbers = [int(name.removeprefix(LOGITS)) for name in fields if name.startswith(LOGITS)]
    return [(f"{LOGITS}{number}", f"{MASS}{number}") for number in sorted(numbers)]


def draws_drafts(plan: Any) -> bool:
    """Whether a program draws drafts and weighs them by what they were drawn from, kept between steps or not."""
    return any(call.op == WEIGH for node in plan.nodes("step") for call in node.ops)


def weighs(plan: Any) -> bool:
    """Whether a program carries what drafts were drawn from."""
    return any(name.startswith(MASS) for name in plan.carry)
