"""State spaces (Mamba-2) with drafts on a CPU, where vLLM's own go on from all of these: in plain torch.

Windows and states begin behind the last token that was accepted, as in vLLM's kernels for GPUs. It is a plugin of
vLLM's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus
from vllm.model_executor.layers.mamba import mamba_mixer2


def register() -> None:
    """Put them in the place of vLLM's."""
    mamba_mixer2.causal_conv1d_update, mamba_mixer2.selective_state_update = update, advance


def update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    *,
    conv_state_indices: Tensor,
    num_accepted_tokens: Tensor | None,
    query_start_loc: Tensor | None,
    **_: Any,
) -> Tensor:
    """Go over tokens x T[n, C] of requests, whose windows T[blocks, C, *] are in the blocks `conv_state_indices`.

    A window leaves all inputs that any number of accepted tokens may begin with next. Block 0 is padding's.
    """
    if activation != "silu":
        raise NotImplementedError(f"windows with the activation {activation}")
    requests, before = len(conv_state_indices), weight.shape[1] - 1
    blocks = conv_state_indices.view(requests, -1)[:, 0].tolist()
    starts = range(requests + 1) if query_start_loc is None else query_start_loc.tolist()
    accepted = [1] * requests if num_accepted_tokens is None else num_accepted_tokens.tolist()
    made = torch.zeros_like(x)
    for block, begin, end, count in zip(blocks, starts[:-1], starts[1:], accepted, strict=True):
        if block == 0 or begin == end:
            continue
        inputs = torch.cat((conv_state[block, :, count - 1 : count - 1 + before], x[begin:end].T), 1)
        windows = inputs.float().unfold(1, before + 1, 1)
        mixed = (windows * weight.float()[:, None]).sum(-1) + (0 if bias is None else bias.float()[:, None])
        made[begin:end] = silu(mixed).T.to(x.dtype)
        conv_state[block, :, : inputs.shape[1] - 1] = inputs[:, 1:]
    return made


def advance(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    *,
    dt_softplus: bool,
    state_batch_indices: Tensor,
    dst_state_batch_indices: Tensor,
    out: Tensor,
    num_accepted_tokens: Tensor | None,
    cu_seqlens: Tensor | None,
    **_: Any,
) -> None:
    """Go over tokens x T[n, H, P] of requests from the state behind the last accepted token; `out` gets what is read.

    The state behind a token is in the block of its place, of `state` T[blocks, H, P, N]. Block 0 is padding's.
    """
    if not dt_softplus:
        raise NotImplementedError("steps without a softplus")
    requests, heads = len(state_batch_indices), x.shape[1]
    begins, ends = (given.view(requests, -1).tolist() for given in (state_batch_indices, dst_state_batch_indices))
    starts = range(requests + 1) if cu_seqlens is None else cu_seqlens.tolist()
    accepted = [1] * requests if num_accepted_tokens is None else num_accepted_tokens.tolist()
    steps = softplus(dt.float() + dt_bias.float())
    keys, queries = (given.float().repeat_interleave(heads // given.shape[1], 1) for given in (B, C))
    for number in range(requests):
        block = begins[number][max(accepted[number] - 1, 0)]
        if block == 0 or starts[number] == starts[number + 1]:
            continue
        kept = state[block].float()
        for place, token in enumerate(range(starts[number], starts[number + 1])):
            stored = (steps[token] * x[token].float())[..., None] * keys[token][:, None]
            kept = kept * (steps[token][..., None] * A.float()).exp() + stored
            out[token] = (kept @ queries[token][..., None])[..., 0] + D.float() * x[token].float()
            state[ends[number][place]] = kept.to(state.dtype)
