"""What the op of ANCHORED computes, in torch. Wheels of its programs hold a copy of this file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def repeats(operands: tuple[Tensor, ...], attrs: Mapping[str, Any], dims: Mapping[str, int]) -> tuple[Tensor, ...]:
    """Tokens i32[B, A], count i32[B] -> i32[B]: how many of the first tokens are the one before them."""
    del attrs, dims
    tokens, count = operands
    columns = torch.arange(1, tokens.shape[1], device=tokens.device)
    same = (tokens[:, 1:] == tokens[:, :-1]) & (columns < count[:, None])
    return (same.sum(dim=1).to(torch.int32),)
