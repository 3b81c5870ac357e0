"""The calling convention of op semantics, and the order of scores that every op shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..dtypes import DTYPES as NAMES

Tensors: TypeAlias = tuple[Tensor, ...]
Attrs: TypeAlias = Mapping[str, Any]
Dims: TypeAlias = Mapping[str, int]
Semantics: TypeAlias = Callable[[Tensors, Attrs, Dims], Tensors]

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, known) for name, known in NAMES.items()}
"""torch's dtypes by their names in plans."""


def register(table: dict[str, Semantics], name: str) -> Callable[[Semantics], Semantics]:
    """Decorator: the function is the semantics of op `name` in `table`."""

    def add(function: Semantics) -> Semantics:
        table[name] = function
        return function

    return add


def comparable(scores: Tensor) -> Tensor:
    """Scores as f32 under the pinned order: NaN becomes -inf, -0.0 becomes 0.0."""
    values = torch.nan_to_num(scores.to(torch.float32), nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    return values + 0.0


def ranking(scores: Tensor) -> Tensor:
    """Indices i64 along the last axis by descending score, lowest index first on ties. `scores` are `comparable`."""
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices


def bad_rows(logits: Tensor) -> Tensor:
    """Rows i1[...] of logits T[..., V] that hold NaN, which is then what `amax` gives, or have no finite largest."""
    return ~logits.amax(dim=-1).isfinite()


def zero_rows(values: Tensor, padding: Tensor) -> Tensor:
    """A copy of values [B, ...] with the rows of padding i1[B] set to zero."""
    return values.masked_fill(padding.view(-1, *([1] * (values.dim() - 1))), 0)
