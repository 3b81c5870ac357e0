"""Semantics of the `chain` dialect: drafts in a row."""

from __future__ import annotations

import torch

from .convention import Attrs, Dims, Tensors, register


@register("chain.root")
def chain_root(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Bonus i32[B] -> tokens i64[B, A]: column 0 the bonus, else 0."""
    (bonus,) = operands
    tokens = torch.zeros(bonus.shape[0], dims["A"], dtype=torch.int64, device=bonus.device)
    tokens[:, 0] = bonus
    return (tokens,)


@register("chain.start")
def chain_start(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Bonus i32[B], token i64[B, 1] -> tokens i64[B, A]: column 0 the bonus, column 1 the token, else 0."""
    bonus, token = operands
    (tokens,) = chain_root((bonus,), attrs, dims)
    tokens[:, 1] = token.reshape(-1)
    return (tokens,)


@register("chain.first")
def chain_first(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Token i64[B, 1] -> drafts i64[B, S]: column 0 the token, else 0."""
    (token,) = operands
    drafts = torch.zeros(token.shape[0], dims["S"], dtype=torch.int64, device=token.device)
    drafts[:, :1] = token.reshape(-1, 1)
    return (drafts,)


@register("chain.drafts")
def chain_drafts(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Tokens i64[B, A] -> drafts i64[B, S]: what follows the first."""
    return (operands[0][:, 1:].clone(),)


@register("chain.join")
def chain_join(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Bonus i32[B], drafts i64[B, S] -> tokens i64[B, A]: the bonus, then the first A - 1 drafts."""
    bonus, drafts = operands
    return (torch.cat((bonus.to(torch.int64)[:, None], drafts[:, : dims["A"] - 1]), dim=1),)


@register("chain.shift")
def chain_shift(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Tokens i64[B, A], accept_lens i32[B], token i64[B, 1] -> tokens one further in the text, then the token.

    Entry i < accept_len - 1 is entry i + 1, entry accept_len - 1 the token; the others stay.
    """
    tokens, accept_lens, token = operands
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    last = accept_lens.to(torch.int64)[:, None] - 1
    shifted = torch.where(columns < last, tokens.roll(-1, dims=1), tokens)
    return (torch.where(columns == last, token.reshape(-1, 1), shifted),)


@register("chain.append")
def chain_append(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Tokens i64[B, A or S], token i64[B, 1] -> tokens with column `column` replaced."""
    tokens, token = operands
    appended = tokens.clone()
    appended[:, int(attrs["column"])] = token.reshape(-1)
    return (appended,)
