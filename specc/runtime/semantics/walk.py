"""The `walk` ops, and `verify.path`, in plain torch, see `reference`."""

from __future__ import annotations

import torch

from .convention import Attrs, Dims, Tensors, register


@register("walk.root")
def walk_root(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows i64[B] -> node i64[B]: 0, of padding -1."""
    (rows,) = operands
    return (torch.where(rows == 0, -1, 0),)


@register("walk.step")
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
    matches = (child < nodes) & (node >= 0) & (rows != 0)
    return torch.where(matches, rows, 0), torch.where(matches, child, -1)


@register("walk.at")
def walk_at(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Values T[B, n], node i64[B] -> T[B], 0 where no value is of such a node; -0.0 becomes 0.0."""
    x, node = operands
    there = (node >= 0) & (node < x.shape[1])
    chosen = x.gather(1, torch.where(there, node, 0)[:, None]).squeeze(1)
    return (torch.where(there, chosen, 0) + 0,)


@register("walk.bad")
def walk_bad(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Flags i1[B, n], accept_index i32[B, A] of global node ids -> i1[B]: whether one on the path is set."""
    bad, accept_index = operands
    node = accept_index.to(torch.int64) - torch.arange(len(bad), device=bad.device)[:, None] * bad.shape[1]
    there = (accept_index >= 0) & (node >= 0) & (node < bad.shape[1])
    return ((bad.gather(1, torch.where(there, node, 0)) & there).any(dim=1),)
