"""The `walk` ops, and `verify.path`, in plain torch, see `reference`."""

from __future__ import annotations

import torch

from .convention import Attrs, Dims, Semantics, Tensors
from .convention import register as _register

WALK_OPS: dict[str, Semantics] = {}


@_register(WALK_OPS, "walk.root")
def walk_root(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows i64[B] -> node i64[B]: 0, of padding -1."""
    (rows,) = operands
    return (torch.where(rows == 0, -1, 0),)


@_register(WALK_OPS, "walk.step")
def walk_step(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Tokens i64[B, n], token i32[B], rows i64[B], node i64[B][, parent i64[B, n]] -> rows i64[B], node i64[B].

    The first child of the node whose token it is; without one, from node -1, and of padding: 0, -1.
    """
    tokens, token, rows, node, *parents = operands
    nodes = tokens.shape[1]
    columns = torch.arange(nodes, device=tokens.device)
    (parent,) = parents or ((columns - 1).expand(tokens.shape),)
    agrees = (parent == node[:, None]) & (tokens == token[:, None]) & (columns > 0)
    child = torch.where(agrees, columns, nodes).amin(dim=1)
    found = (child < nodes) & (node >= 0) & (rows != 0)
    return torch.where(found, rows, 0), torch.where(found, child, -1)


@_register(WALK_OPS, "walk.at")
def walk_at(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Values T[B, n], node i64[B] -> T[B], 0 where no value is of such a node; -0.0 becomes 0.0."""
    x, node = operands
    there = (node >= 0) & (node < x.shape[1])
    chosen = x.gather(1, torch.where(there, node, 0)[:, None]).squeeze(1)
    return (torch.where(there, chosen, 0) + 0,)


@_register(WALK_OPS, "walk.bad")
def walk_bad(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Flags i1[B, n], accept_index i32[B, A] of global node ids -> i1[B]: whether one on the path is set."""
    bad, accept_index = operands
    node = accept_index.to(torch.int64) - torch.arange(len(bad), device=bad.device)[:, None] * bad.shape[1]
    there = (accept_index >= 0) & (node >= 0) & (node < bad.shape[1])
    return ((bad.gather(1, torch.where(there, node, 0)) & there).any(dim=1),)


@_register(WALK_OPS, "verify.path")
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
