"""Recurrent layers: convolutions over channels, and gated delta rules, which a state remembers.

Functions take what SGLang gives to its kernels of a GPU, where those of a CPU take less: they leave windows and states
behind each token of a verification, from which the accepted one is taken. A request whose row is negative is padding.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

CHUNK = 64
"""Tokens between two of the states of a prompt that may be kept for prefixes."""
NOTHING = 1e-6
"""Added to the square of a length by which keys and queries are divided."""
LINEAR = 20.0
"""From where on `softplus` is its argument."""


def causal_conv1d_fn_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    conv_states: Tensor,
    has_initial_state: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    seq_lens_cpu: list[int],
) -> Tensor:
    """Convolve prompts x [C, n], each with the window that was left for it in `conv_states` [slots, C, W - 1]."""
    convolved = torch.zeros_like(x)
    rows, known = cache_indices.tolist(), has_initial_state.tolist()
    for row, begins, (begin, end) in zip(rows, known, pairwise(query_start_loc.tolist()), strict=True):
        if row < 0 or begin == end:
            continue
        window = conv_states[row].to(x.dtype) if begins else x.new_zeros(conv_states.shape[1:])
        inputs = torch.cat((window, x[:, begin:end]), 1)
        summed = (inputs.unfold(1, weight.shape[1], 1) * weight[:, None]).sum(-1)
        convolved[:, begin:end] = activated(summed, bias, activation)
        conv_states[row] = inputs[:, -window.shape[1] :].to(conv_states.dtype)
    return convolved


def causal_conv1d_update_cpu(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    *,
    conv_state_indices: Tensor,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
) -> Tensor:
    """Convolve a token of each request x [b, C], or all nodes of its chain or tree x [b, C, N].

    `intermediate_conv_window` [requests, N, C, W - 1] gets the window behind each node, and `retrieve_parent_token`
    i32[b, N] the parents that follow from the links of a tree. The window in `conv_state` goes on over all nodes in
    their order, whichever will be accepted.
    """
    tokens = x if x.dim() == 3 else x[..., None]
    nodes, width = tokens.shape[2], weight.shape[1]
    real = conv_state_indices >= 0
    rows = conv_state_indices[real].long()
    inputs = torch.cat((conv_state[rows].to(x.dtype), tokens[real]), 2)
    if retrieve_next_token is None:
        parents = torch.arange(-1, nodes - 1).expand(len(tokens), -1)
    else:
        parents = linked(retrieve_next_token, retrieve_next_sibling)[: len(tokens)]
        retrieve_parent_token[: len(tokens)] = parents.clamp(min=0)
    seen = (
        inputs[:, :, None]
        .expand(-1, -1, nodes, -1)
        .gather(3, ancestors(parents[real], width)[:, None].expand(-1, inputs.shape[1], -1, -1))
    )
    convolved = torch.zeros_like(tokens)
    convolved[real] = activated((seen * weight[:, None]).sum(-1), bias, activation)
    if intermediate_conv_window is not None:
        kept = seen[..., 1:].transpose(1, 2).to(intermediate_conv_window.dtype)
        intermediate_conv_window[intermediate_state_indices[: len(tokens)][real].long(), :nodes] = kept
    conv_state[rows] = inputs[..., 1 - width :].to(conv_state.dtype)
    return convolved.view(x.shape)


def linked(children: Tensor, siblings: Tensor) -> Tensor:
    """Return the parents i64[b, N] of nodes whose first children and next siblings i32[b, N] are given, or -1."""
    parents = torch.full(children.shape, -1)
    for request, (of_child, of_sibling) in enumerate(zip(children.tolist(), siblings.tolist(), strict=True)):
        for node, (child, sibling) in enumerate(zip(of_child, of_sibling, strict=True)):
            if child >= 0:
                parents[request, child] = node
            if sibling >= 0:
                parents[request, sibling] = parents[request, node]
    return parents


def ancestors(parents: Tensor, width: int) -> Tensor:
    """Return the inputs i64[b, N, W] that end in each node, counted from the first of the window before the root."""
    requests, nodes = parents.shape
    before = torch.arange(-1, width - 2).clamp(min=0).expand(requests, -1)
    above = torch.cat((before, parents + width - 1), 1)
    path = [torch.arange(width - 1, width - 1 + nodes).expand(requests, -1)]
    while len(path) < width:
        path.insert(0, above.gather(1, path[0]))
    return torch.stack(path, 2)


def activated(summed: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """Return sums [..., C, n] with a bias [C], activated."""
    if activation != "silu":
        raise NotImplementedError(activation)
    return silu(summed if bias is None else summed + bias[:, None])


def gates(A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithm of decay, and the share of the new, f32[1, n, H] each, of inputs `a` and `b` [n, H]."""
    decay = -A_log.float().exp() * softplus(a.float() + dt_bias.float(), threshold=LINEAR)
    return decay[None], b.float().sigmoid()[None]


def channel_gates(A_log: Tensor, a: Tensor, dt_bias: Tensor, heads: int) -> Tensor:
    """Return the logarithm of decay of each entry of keys f32[n, heads, K], of inputs `a` [..., heads * K] (KDA)."""
    shape = (heads, dt_bias.numel() // heads)
    inputs = a.reshape(-1, *shape).float() + dt_bias.float().view(shape)
    return -A_log.float().exp().view(-1, 1) * softplus(inputs, threshold=LINEAR)


def unit(vectors: Tensor) -> Tensor:
    """Give vectors [..., K] the length of one."""
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + NOTHING)


def directions(q: Tensor, k: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Return queries and keys f32[n, heads, K] of such q and k [1, n, H, K] that each is for several heads."""
    queries, keys = (unit(given[0].float()).repeat_interleave(heads // given.shape[2], 1) for given in (q, k))
    return queries * q.shape[-1] ** -0.5, keys


def advanced(state: Tensor, key: Tensor, value: Tensor, decay: Tensor, share: Tensor) -> Tensor:
    """Return states [..., V, K] in which a share of the difference to a value [..., V] is stored under a key.

    Before that they decay, by a logarithm for all of a state, or for each entry of keys [..., 1 or K].
    """
    state = state * decay.exp()[..., None, :]
    new = (value - (state @ key[..., None])[..., 0]) * share[..., None]
    return state + new[..., None] * key[..., None, :]


def chunk_gated_delta_rule_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    head_first: bool,
    use_qk_l2norm_in_kernel: bool,
    initial_state_indices: Tensor,
) -> tuple[Tensor, None, Tensor]:
    """Go over prompts: what is read [1, n, H, V], and states f32[1, c, H, V, K] before each chunk of them.

    `q` and `k` are [1, n, H_k, K], `v` [1, n, H, V], the logarithm of decay `g` and the share `beta` [1, n, H]. Each
    prompt has a row of `initial_state` [slots, H, V, K], in which its last state is left.
    """
    if head_first or not use_qk_l2norm_in_kernel:
        raise NotImplementedError("heads come last, and keys and queries have no length yet")
    read, before = prompted(
        q, k, v, g[0].float()[..., None], beta[0].float(), initial_state, cu_seqlens, initial_state_indices
    )
    return read, None, torch.stack([state for states in before for state in states])[None]


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Tensor,
    initial_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool,
    cu_seqlens: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    beta_is_raw: bool,
    output_intermediate_states: bool,
    track_state: Tensor | None,
    track_chunk_idx: Tensor | None,
    **options: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """Go over prompts of Kimi's delta rule, whose gates are made here: what is read, and states before each chunk.

    `track_state` f32[b, H, V, K] gets the states before chunks `track_chunk_idx` i32[b] of prompts, which may be -1.
    """
    if not use_qk_l2norm_in_kernel or not beta_is_raw or any(option is not None for option in options.values()):
        raise NotImplementedError(options)
    decay = channel_gates(A_log, g, dt_bias, v.shape[2])
    read, before = prompted(q, k, v, decay, beta[0].float().sigmoid(), initial_state, cu_seqlens, initial_state_indices)
    if track_state is not None:
        for kept, states, chunk in zip(track_state, before, track_chunk_idx.tolist(), strict=True):
            if chunk >= 0:
                kept.copy_(states[chunk])
    if not output_intermediate_states:
        return read
    return read, torch.stack([state for states in before for state in states])[None].to(k.dtype)


def prompted(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    share: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    initial_state_indices: Tensor,
) -> tuple[Tensor, list[list[Tensor]]]:
    """Go over prompts, each with its row of states: what is read [1, n, H, V], and of each the states before chunks."""
    queries, keys = directions(q, k, v.shape[2])
    values = v[0].float()
    read, before = torch.empty_like(values), list[list[Tensor]]()
    for row, (begin, end) in zip(initial_state_indices.tolist(), pairwise(cu_seqlens.tolist()), strict=True):
        state = initial_state[row].to(torch.float32, copy=True) if row >= 0 else torch.zeros(initial_state.shape[1:])
        before.append([])
        for token in range(begin, end):
            if (token - begin) % CHUNK == 0:
                before[-1].append(state)
            state = advanced(state, keys[token], values[token], decay[token], share[token])
            read[token] = (state @ queries[token, :, :, None])[..., 0]
        if row >= 0:
            initial_state[row] = state.to(initial_state.dtype)
    return read.to(v.dtype)[None], before


def gated_delta_rule_update(
    *,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    softplus_beta: float,
    softplus_threshold: float,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool,
    cu_seqlens: Tensor,
    is_kda: bool = False,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
    cache_ring: bool = False,
    replayssm_rawv: Tensor | None = None,
    replayssm_rawk: Tensor | None = None,
    replayssm_g: Tensor | None = None,
    replayssm_beta: Tensor | None = None,
    **options: object,
) -> Tensor:
    """Go over a token of each request, or all nodes of its chain or tree, as many for each: what is read [1, n, H, V].

    `intermediate_states_buffer` [requests, N, H, V, K] gets the state behind each node, which its children go on from.
    Padding begins with zeros there, as a request without a state. With `cache_ring` the inputs of nodes are kept by
    slot (KDA): values [slots, H, L, V], keys [slots, H_k, L, K], logarithms of decay and shares of the new [slots, H,
    L, ...].
    """
    if not use_qk_l2norm_in_kernel or (softplus_beta, softplus_threshold) != (1.0, LINEAR):
        raise NotImplementedError("gates are others")
    if any(option is not None and option is not False for option in options.values()):
        raise NotImplementedError(options)
    heads, requests = v.shape[2], len(cu_seqlens) - 1
    nodes = v.shape[1] // requests
    if not torch.equal(cu_seqlens, torch.arange(0, v.shape[1] + 1, nodes, dtype=cu_seqlens.dtype)):
        raise NotImplementedError("requests with unlike numbers of nodes")
    share = b.reshape(-1, heads).float().sigmoid()
    if is_kda:
        decay = channel_gates(A_log, a, dt_bias, heads)
    else:
        decay = gates(A_log, a.reshape(-1, heads), share, dt_bias)[0][0, ..., None]
    steps = (*directions(q, k, heads), v[0].float(), decay, share)
    queries, keys, values, decay, share = (given.unflatten(0, (requests, nodes)) for given in steps)
    rows = initial_state_indices[:requests].long()
    real = rows >= 0

    def behind(before: Tensor, node: int) -> Tensor:
        return advanced(before, keys[:, node], values[:, node], decay[:, node], share[:, node])

    first = initial_state_source[rows.clamp(min=0)].float() * real[:, None, None, None]
    states = walked(first, nodes, retrieve_parent_token, behind)
    if cache_ring:
        if not is_kda or retrieve_parent_token is not None:
            raise NotImplementedError("records of KDA's chains alone")
        raw = (given[0].unflatten(0, (requests, nodes)) for given in (v, k))
        rings = replayssm_rawv, replayssm_rawk, replayssm_g, replayssm_beta
        for ring, given in zip(rings, (*raw, decay, share), strict=True):
            ring[rows[real], :, :nodes] = given[real].transpose(1, 2).to(ring.dtype)
    if intermediate_states_buffer is not None:
        kept = states.to(intermediate_states_buffer.dtype)
        intermediate_states_buffer[intermediate_state_indices[:requests].long(), :nodes] = kept
    if not disable_state_update:
        initial_state_source[rows[real]] = states[real, -1].to(initial_state_source.dtype)
    return (states @ queries[..., None])[..., 0].flatten(0, 1).to(v.dtype)[None]


def walked(first: Tensor, nodes: int, parents: Tensor | None, behind: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Return the states [b, N, ...] behind the nodes of chains, or of trees whose parents i32[b, N] are given.

    The root goes on from `first` [b, ...]. `behind` gives the states that nodes of a number leave of those before.
    """
    requests, states = torch.arange(len(first)), [behind(first, 0)]
    for node in range(1, nodes):
        before = states[-1] if parents is None else torch.stack(states, 1)[requests, parents[: len(first), node].long()]
        states.append(behind(before, node))
    return torch.stack(states, 1)
