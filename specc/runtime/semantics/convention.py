"""The calling convention of op semantics, and the order of scores that every op shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..dtypes import DTYPES as NAMES

Tensors: TypeAlias = tuple[Tensor, ...]
Attrs: TypeAlias = Mapping[str, Any]
Dims: TypeAlias = Mapping[str, int]
Semantics: TypeAlias = Callable[[Tensors, Attrs, Dims], Tensors]
Store: TypeAlias = Callable[[Tensors, Tensor], Tensor]
Move: TypeAlias = Callable[[Tensors, Attrs, Dims, Sequence[Tensor]], None]

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, known) for name, known in NAMES.items()}
"""torch's dtypes by their names in plans."""


OPS: dict[str, Semantics] = {}
"""By op, of what files of this folder have been imported: `reference` imports them all."""
STORES: dict[str, Store] = {}
"""By op, of its operands, of which rows i64[B] come first, and the pool: what these rows of the pool become."""
MOVES: dict[str, tuple[str, Move]] = {}
"""By op the owner of the KV buffers that it changes, and what it does to them."""


def register(name: str) -> Callable[[Semantics], Semantics]:
    """Decorator: the function is the semantics of op `name`."""

    def add(function: Semantics) -> Semantics:
        OPS[name] = function
        return function

    return add


def stores(name: str) -> Callable[[Store], Store]:
    """Decorator: the function has what rows of a pool become, for an op `name` that stores."""

    def add(function: Store) -> Store:
        def stored(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
            *given, pool = operands
            return (pool.index_copy(0, given[0], function(tuple(given), pool)),)

        STORES[name] = function
        OPS[name] = stored
        return function

    return add


def moves(name: str, owner: str) -> Callable[[Move], Move]:
    """Decorator: the function changes the KV buffers of `owner`, for an op `name`."""

    def add(function: Move) -> Move:
        MOVES[name] = owner, function
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
