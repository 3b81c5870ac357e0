"""Semantics of the `health` dialect: what is wrong with a request, in one word."""

from __future__ import annotations

import torch

from .convention import Attrs, Dims, Tensors, register


@register("health.clear")
def health_clear(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows i64[B] -> health i32[B], all zero."""
    (rows,) = operands
    return (torch.zeros_like(rows, dtype=torch.int32),)


@register("health.raise")
def health_raise(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Health i32[B], bad i1[B, ...] -> health with bit `bit` set where any bad[b]."""
    health, bad = operands
    raised = bad.flatten(1).any(dim=1) if bad.dim() > 1 else bad
    return (torch.where(raised, health | (1 << int(attrs["bit"])), health),)
