"""How answers are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .conftest import Answers

SIDES = ("kernels", "reference")


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Bit for bit, dtype and shape included; NaN equals NaN."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    return bool(torch.equal(ours, theirs) or ((ours == theirs) | (ours.isnan() & theirs.isnan())).all())


def rounds(answers: Answers, side: str, *, target_nan: bool = False) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """Every step of every chain: (label, case, what the forwards returned, specc's answer, SGLang's)."""
    for number, case in enumerate(answers.cases["chain"]):
        if case["target_nan"] is target_nan:
            both = zip(
                case["rounds"], answers.specc[side]["chain"][number], answers.oracle["chain"][number], strict=True
            )
            for step, (given, ours, theirs) in enumerate(both):
                yield f"chain {number}, step {step}", case, given, ours, theirs
