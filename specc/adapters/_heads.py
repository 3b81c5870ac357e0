"""The head of a draft that a program computes, in an engine: what the adapters of all engines share."""

from __future__ import annotations

from typing import Any

from torch import Tensor

HEAD, TOKEN_MAP = "draft_head", "d2t"
"""Tables of a program: the engine's head, and the tokens that a draft of a part of them scores."""
WEIGHT, SCALE = "head_weight", "head_scale"
"""What the program makes of the head when it is bound: weights, and what one of 8 bits is worth."""
BYTE = ("i8", "f8")
"""Dtypes of weights of 8 bits."""


def computes_head(plan: Any) -> bool:
    """Whether a program computes the head of its draft."""
    return HEAD in plan.tables()


def saved(plan: Any, head: Tensor) -> str:
    """What a draft reads of its head in a program, and in the engine's own step, of a head T[H, W]: for the log."""
    weight, entries, scales = plan.inputs[WEIGHT], plan.size("Vd"), SCALE in plan.inputs
    element = 1 if weight.dtype in BYTE else head.element_size()
    reads = entries * (int(weight.axes[-1]) * element + 4 * scales)
    own = head.numel() * head.element_size()
    return f"the program computes the draft's head: a draft reads {reads:,} bytes of it in place of {own:,}"
