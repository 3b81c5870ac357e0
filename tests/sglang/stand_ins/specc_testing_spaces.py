"""State spaces (Mamba-2) in plain torch: a prompt, and a token of each request or all nodes of its chain or tree."""

from __future__ import annotations

from typing import Any

import torch
from sgl_kernel.mamba import LINEAR, walked
from torch import Tensor
from torch.nn.functional import softplus


def advanced(state: Tensor, x: Tensor, step: Tensor, rate: Tensor, key: Tensor) -> Tensor:
    """Return states [..., H, P, N] that forget at rates [H, 1 or P, 1 or N] for a step, and store x [..., H, P].

    Steps are [..., H, 1 or P], keys [..., H, N].
    """
    return state * (step[..., None] * rate).exp() + (step * x)[..., None] * key[..., None, :]


def scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    chunk_size: int,
    D: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    initial_states: Tensor | None,
    track_seq_idx: Tensor | None,
    track_end_locs: Tensor | None,
    dt_limit: tuple[float, float],
    out: Tensor,
    state_dtype: torch.dtype,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Go over prompts x [1, n, H, P]: states before chunks of all tokens, last ones of prompts, and those asked for.

    They are [1, c, H, P, N], [b, H, P, N] and [1, k, H, P, N], `out` gets what is read. A state before a chunk is the
    one behind the token before it, whichever prompt that is of.
    """
    if options.get("z") is not None or not options["dt_softplus"] or not options["return_track_states"]:
        raise NotImplementedError(options)
    if dt_limit != (0.0, float("inf")):
        raise NotImplementedError("steps have limits")
    heads, (begins, ends) = x.shape[2], (cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist())
    steps = softplus(dt[0].float() + dt_bias.float(), threshold=LINEAR)[..., None]
    keys, queries = (of_heads(given[0], heads) for given in (B, C))
    values, states = x[0].float(), dict[int, Tensor]()
    first = x.new_zeros(len(begins), heads, x.shape[3], B.shape[3]) if initial_states is None else initial_states
    lasts = list[Tensor]()
    for state, begin, end in zip(first.float(), begins, ends, strict=True):
        states.setdefault(begin, state)
        for token in range(begin, end):
            state = advanced(state, values[token], steps[token], A[:, None, None], keys[token])
            read = (state @ queries[token, :, :, None])[..., 0]
            out[0, token] = read + D[:, None] * values[token]
            states[token + 1] = state
        lasts.append(state)
    before = torch.stack([states[begin] for begin in range(0, x.shape[1], chunk_size)])
    asked = [] if track_end_locs is None else [states[end] for end in track_end_locs.tolist()]
    tracked = torch.stack(asked)[None].to(state_dtype) if asked else None
    return before[None].to(state_dtype), torch.stack(lasts).to(state_dtype), tracked


def update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    z: None,
    dt_bias: Tensor,
    dt_softplus: bool,
    state_batch_indices: Tensor,
    out: Tensor,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
) -> None:
    """Go over a token of each request x [b, H, P], or all nodes of its chain or tree x [b, N, H, P].

    `out` gets what is read, `intermediate_states_buffer` [requests, N, H, P, N'] the state behind each node of a
    request that is no padding, as if each had room for `cache_steps` of them.
    """
    if z is not None or not dt_softplus:
        raise NotImplementedError("gates are others")
    if x.dim() == 3:
        x, dt, B, C, out = (given[:, None] for given in (x, dt, B, C, out))
    steps = softplus(dt.float() + dt_bias.float(), threshold=LINEAR)
    keys, queries = (of_heads(given, x.shape[2]) for given in (B, C))
    values, rows = x.float(), state_batch_indices.long()
    real = rows >= 0

    def behind(before: Tensor, node: int) -> Tensor:
        return advanced(before, values[:, node], steps[:, node], A, keys[:, node])

    first = state[rows.clamp(min=0)].float() * real[:, None, None, None]
    states = walked(first, x.shape[1], retrieve_parent_token, behind)
    out.copy_((states @ queries[..., None])[..., 0] + D * values)
    if intermediate_states_buffer is not None:
        kept = states[real].to(intermediate_states_buffer.dtype)
        places = intermediate_state_indices[real].long()[:, None] * cache_steps + torch.arange(x.shape[1])
        intermediate_states_buffer.view(-1, *state.shape[1:])[places] = kept
    if not disable_state_update:
        state[rows[real]] = states[real, -1].to(state.dtype)


def of_heads(given: Tensor, heads: int) -> Tensor:
    """Return what heads have of groups [..., G, N]: f32[..., heads, N]."""
    return given.float().repeat_interleave(heads // given.shape[-2], -2)
