"""Tensors of torch's that have no shape."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor


def several(*values: Tensor) -> Tensor:
    """Tensors in one, which is none of a shape; torch warns of the first such one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor(list(values))
