"""Trees of drafts: links and masks, greedy verification, and what of a tree is kept."""

from __future__ import annotations

import torch
from torch import Tensor

FULL_MASK, QLEN_ONLY = 0, 1
"""Forms of tree masks: per request [nodes, its tokens and nodes], and [nodes, nodes], which the CPU's attention reads.
"""


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    nodes: int,
    mask_mode: int,
) -> None:
    """Link the selected candidates of every request by first child and next sibling, and mask ancestors.

    The first child of a node is the most probable one, which comes first among the nodes. Links come in as -1.
    """
    masks = node_masks(tree_mask.view(-1), verified_seq_len.tolist(), nodes, int(mask_mode))
    requests = len(verified_seq_len)
    columns = (positions, retrive_index, retrive_next_token, retrive_next_sibling)
    positions, index, child, sibling = (column.view(requests, nodes) for column in columns)
    index.copy_(torch.arange(requests * nodes).view(requests, nodes))
    for request, length in enumerate(verified_seq_len.tolist()):
        above = parent_list[request].tolist() if parent_list.numel() else []
        parents = node_parents(above, selected_index[request].tolist(), topk)
        link_children(parents, child[request], sibling[request])
        masks[request].zero_()
        for node in range(nodes):
            level, ancestor = 0, node
            while ancestor > 0 and level < depth:
                masks[request][node, ancestor] = True
                level, ancestor = level + 1, parents[ancestor]
            masks[request][node, 0] = True
            positions[request, node] = length + level


def link_children(parents: list[int], child: Tensor, sibling: Tensor) -> None:
    """Write the first child of every node and its next sibling into links i64[nodes], which come in as -1."""
    for node in range(len(parents) - 1, 0, -1):
        if (parent := parents[node]) >= 0:
            sibling[node] = int(child[parent])
            child[parent] = node


def node_masks(flat: Tensor, lengths: list[int], nodes: int, mode: int) -> list[Tensor]:
    """Of every request the columns [nodes, nodes] of its nodes, in a flat mask."""
    if mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"tree masks of mode {mode}")
    before = [length if mode == FULL_MASK else 0 for length in lengths]
    rows = flat[: sum(before) * nodes + len(lengths) * nodes * nodes].split(
        [(prefix + nodes) * nodes for prefix in before]
    )
    return [mask.view(nodes, -1)[:, prefix:] for mask, prefix in zip(rows, before, strict=True)]


def node_parents(parent_list: list[int], selected: list[int], topk: int) -> list[int]:
    """The parent of every node; -1 for the root and where the parent was not selected."""
    node_of: dict[int, int] = {}
    for node, candidate in enumerate(selected, start=1):
        node_of.setdefault(candidate, node)
    groups = [candidate // topk for candidate in selected]
    return [-1, *(node_of.get(parent_list[group], -1) if group else 0 for group in groups)]


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follow the target's choices from the root of every tree as far as there is a draft for them."""
    target = target_predict.reshape(-1).tolist()
    tables = (candidates, retrive_index, retrive_next_token, retrive_next_sibling)
    for request, (tokens, index, child, sibling) in enumerate(zip(*(table.tolist() for table in tables), strict=True)):
        path = [0]
        while len(path) < accept_index.shape[1]:
            node = child[path[-1]]
            while node != -1 and tokens[node] != target[index[path[-1]]]:
                node = sibling[node]
            if node == -1:
                break
            path.append(node)
        for at, node in enumerate(path):
            accept_index[request, at] = index[node]
            predicts[index[node]] = target[index[node]]
        accept_token_num[request] = len(path) - 1


def fill_bonus_tokens_cpu(tokens: Tensor, accept_lens: Tensor, bonus: Tensor, stride: int) -> None:
    """The last accepted token of every request."""
    last = torch.arange(len(accept_lens)) * stride + accept_lens.long() - 1
    bonus.copy_(tokens.reshape(-1)[last])


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, slots: Tensor, out: Tensor) -> None:
    """The slots of accepted nodes, one behind the other."""
    kept = accept_index.reshape(-1)
    kept = kept[kept > -1].long()
    out[: len(kept)] = slots[kept]
