"""Semantics of the ops of the `tree` dialect with which chains begin, too."""

from __future__ import annotations

import torch

from .convention import Attrs, Dims, Tensors, register


@register("tree.repeat")
def tree_repeat(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Values T[B, W] -> T[B, K, W]: one copy per branch."""
    (x,) = operands
    return (x[:, None].repeat(1, dims["K"], *([1] * (x.dim() - 1))),)


@register("tree.best")
def tree_best(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Candidates T[B, J] -> T[B, K]: the first K."""
    return (operands[0][:, : dims["K"]].contiguous(),)


@register("tree.root")
def tree_root(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Bonus i32[B] -> i64[B]."""
    (bonus,) = operands
    return (bonus.to(torch.int64),)
