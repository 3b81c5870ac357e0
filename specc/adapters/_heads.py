"""The head of a draft that a program computes, in an engine: what the adapters of all engines share."""

from __future__ import annotations

from typing import Any

from torch import Tensor

HEAD, TOKEN_MAP = "draft_head", "d2t"
"""Tables of a program: the engine's head, and the tokens that a draft of a part of them scores."""
WEIGHT, SCALE = "head_weight", "head_scale"
"""The tables that the program makes of the head when it is bound: weights and, in 8 bits, a scale of each entry."""


def computes_head(plan: Any) -> bool:
    """Whether a program computes the head of its draft."""
    return HEAD in plan.tables()


def saved(plan: Any, head: Tensor) -> str:
    """Say for the log what a draft reads of a head T[H, W] in a program, and in the engine's own step."""
    width, in_8_bits = int(plan.inputs[WEIGHT].axes[-1]), SCALE in plan.inputs
    reads = plan.size("Vd") * (width + 4 if in_8_bits else width * head.element_size())
    own = head.numel() * head.element_size()
    return f"the program computes the draft's head: a draft reads {reads:,} bytes of it in place of {own:,}"
