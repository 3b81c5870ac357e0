"""Semantics of the `verify` dialect: which drafts the target agrees with."""

from __future__ import annotations

import torch
from torch import Tensor

from .convention import Attrs, Dims, Tensors, register


@register("verify.greedy")
def verify_greedy(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Accept a path of the target's own tokens; at most A - 1 drafts.

    tokens i64[B, N], argmax i32[B, N], rows i64[B][, parent i64[B, N]]
    -> predict i32[B, N], accept_index i32[B, A], accept_lens i32[B]. Without parents node c + 1 is the child of node c.
    """
    tokens, argmax, rows, *parents = operands
    count, nodes = tokens.shape
    columns = torch.arange(nodes, device=tokens.device)
    (parent,) = parents or ((columns - 1).expand(count, nodes),)
    node, alive = torch.zeros_like(rows), rows != 0
    path: list[Tensor] = []
    for _ in range(dims["A"]):
        path.append(torch.where(alive, node, -1))
        agreed = (parent == node[:, None]) & (tokens == argmax.gather(1, node[:, None])) & (columns > 0)
        child = torch.where(agreed, columns, nodes).amin(dim=1)  # in ascending column the first that agrees
        alive = alive & (child < nodes)
        node = torch.where(alive, child, 0)
    accepted = torch.stack(path, dim=1)
    on_path = (accepted[:, None] == columns[:, None]).any(dim=2)
    first = torch.arange(count, device=tokens.device)[:, None] * nodes
    accept_index = torch.where(accepted < 0, -1, first + accepted)
    accept_lens = (accepted >= 0).sum(dim=1)
    predict = torch.where(on_path, argmax, 0)
    return tuple(result.to(torch.int32) for result in (predict, accept_index, accept_lens))


@register("verify.path")
def verify_path(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Tokens i32[B], ..., then as many nodes i64[B], ... -> predict i32[B, axis], accept_index i32[B, A], lens i32[B].

    What `verify.greedy` gives for a walk that has visited these nodes, one after the other, and drawn these tokens.
    """
    count = int(attrs["parts"])
    tokens, nodes = torch.stack(operands[:count], dim=1), torch.stack(operands[count:], dim=1)
    size = dims[attrs["axis"]]
    there = (nodes >= 0) & (nodes < size)
    at = torch.where(there, nodes, size)  # one column more, for those that are not there
    predict = torch.zeros(len(nodes), size + 1, dtype=torch.int32, device=nodes.device)
    for i in range(count):  # of a node that is visited twice the last token
        predict.scatter_(1, at[:, i : i + 1], tokens[:, i : i + 1])
    first = torch.arange(len(nodes), device=nodes.device)[:, None] * size
    path = torch.where(there, first + nodes, -1).to(torch.int32)
    accept_index = torch.nn.functional.pad(path, (0, dims["A"] - count), value=-1)
    return predict[:, :size].contiguous(), accept_index, there.sum(dim=1, dtype=torch.int32)
