"""Attention of recurrent layers (linear attention, state spaces), which run beside that over keys and values."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor


class BesideStates:
    """What runs a verification of chains by both.

    Args:
        hybrid: the server's object of SGLang's around both.

    """

    def __init__(self, hybrid: Any) -> None:
        """Nothing is prepared yet."""
        self._hybrid, self._links = hybrid, dict[tuple[int, int], tuple[Tensor, Tensor]]()

    def over(self, backend: Any, batch: Any, width: int) -> Any:
        """What runs `width` nodes of each request by `backend`, which is prepared, and by that of recurrent layers.

        That is prepared here, as SGLang does for each batch. It looks up where the states of requests are and waits for
        nobody, so a graph can hold it. What it found stays there until the state is committed.
        """
        recurrent, both = self._hybrid.linear_attn_backend, copy.copy(self._hybrid)
        if recurrent.topk > 1:  # it looks for the links of a tree, whatever this step has
            info, links = batch.spec_info, self._chains(batch, width)
            info.retrieve_next_token, info.retrieve_next_sibling = links
        recurrent.init_forward_metadata(batch)
        both.full_attn_backend, both.attn_backend_list = backend, [backend, recurrent]
        return both

    def _chains(self, batch: Any, width: int) -> tuple[Tensor, Tensor]:
        """Each node's first child and next sibling i32[b, width], -1 for none, in memory that a graph can hold."""
        key = batch.batch_size, width
        if key not in self._links:
            places = torch.arange(1, width + 1, dtype=torch.int32, device=batch.req_pool_indices.device)
            children = torch.where(places < width, places, -1).expand(key).contiguous()
            self._links[key] = children, torch.full_like(children, -1)
        return self._links[key]


def sized(hybrid: Any, nodes: int) -> Any:
    """A server's object around both, for steps of so many nodes of each request, which has room for more.

    Some of SGLang's kernels take each request to have as many snapshots of its state as a step has nodes (Mamba-2), and
    its commit those that there are. So both get the beginning of that memory, in which each request has as many. Where
    records are kept instead nothing depends on how many.
    """
    if hybrid.linear_attn_backend.req_to_token_pool.mamba_pool.mamba_cache.intermediate_ssm is None:
        return hybrid
    both, recurrent = copy.copy(hybrid), copy.copy(hybrid.linear_attn_backend)
    recurrent.req_to_token_pool = pool = copy.copy(recurrent.req_to_token_pool)
    pool.mamba_pool = copy.copy(pool.mamba_pool)
    states = pool.mamba_pool.mamba_cache
    pool.mamba_pool.mamba_cache = replace(states, intermediate_ssm=_first(states.intermediate_ssm, nodes))
    both.linear_attn_backend, both.attn_backend_list = recurrent, [both.full_attn_backend, recurrent]
    return both


def _first(snapshots: Tensor, nodes: int) -> Tensor:
    """The beginning of snapshots T[layers, rows, N, ...], as those of fewer nodes."""
    shape = (*snapshots.shape[:2], nodes, *snapshots.shape[3:])
    return snapshots.view(-1)[: math.prod(shape)].view(shape)
