"""How answers are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .conftest import Answers

SIDES = ("kernels", "reference")


def same(result: Tensor, expected: Tensor) -> bool:
    """Bit for bit, dtype and shape included; NaN equals NaN."""
    if result.dtype != expected.dtype or result.shape != expected.shape:
        return False
    return bool(torch.equal(result, expected) or ((result == expected) | (result.isnan() & expected.isnan())).all())


def rounds(
    answers: Answers, implementation: str, *, target_nan: bool = False
) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """Every step of every chain: (label, case, what the forwards returned, specc's answer, SGLang's)."""
    for number, case in enumerate(answers.cases["chain"]):
        if case["target_nan"] is target_nan:
            both = zip(
                case["rounds"],
                answers.specc[implementation]["chain"][number],
                answers.oracle["chain"][number],
                strict=True,
            )
            for step, (given, result, expected) in enumerate(both):
                yield f"chain {number}, step {step}", case, given, result, expected
