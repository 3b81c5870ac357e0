"""Which columns of its window a node sees, read from the tree masks that attention in SGLang takes."""

from __future__ import annotations

import torch
from torch import Tensor


def seen(slots: Tensor, seq_lens: Tensor, mask: Tensor | None, counts: Tensor | None) -> Tensor:
    """bool[b, N, N], node and column, of a mask in mode `full`, `qlen` or, with counts, `slots`; a chain has none.

    slots i64[b, N] are those of the window: a column is seen if its slot is counted among those of the node.
    """
    rows, nodes = slots.shape
    if mask is None:
        return torch.ones(nodes, nodes, dtype=torch.bool, device=seq_lens.device).tril().expand(rows, -1, -1)
    if counts is not None:
        counted = torch.arange(nodes, device=mask.device) < counts[..., None]
        return ((mask[..., None, :] == slots[:, None, :, None]) & counted[..., None, :]).any(-1)
    if mask.dim() == 3:
        return mask
    width = seq_lens + nodes
    node = torch.arange(nodes, device=seq_lens.device)
    starts = (nodes * (width.cumsum(0) - width))[:, None, None]
    return mask.flatten()[starts + node[:, None] * width[:, None, None] + seq_lens[:, None, None] + node]
