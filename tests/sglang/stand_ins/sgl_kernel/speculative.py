"""Trees of drafts that come as masks: what of the links between their nodes follows from them."""

from __future__ import annotations

import torch
from torch import Tensor

from .trees import link_children


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Positions and links of nodes, whose ancestors are those before them in their row of a mask [b, nodes, nodes]."""
    shape = batch_size, draft_token_num
    ancestors = tree_mask.view(*shape, draft_token_num).tril(-1)
    positions.view(shape).copy_(verified_seq_len[:, None] + ancestors.sum(-1))
    retrive_index.copy_(torch.arange(batch_size * draft_token_num).view(shape))
    columns = torch.arange(draft_token_num)
    parents = torch.where(ancestors, columns, -1).amax(-1)
    for request in range(batch_size):
        child, sibling = retrive_next_token[request].fill_(-1), retrive_next_sibling[request].fill_(-1)
        link_children(parents[request].tolist(), child, sibling)
