"""What SGLang has on GPUs alone for records of states (`--enable-linear-replayssm-spec`), on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor


def keep_records() -> None:
    """Let SGLang keep records of a verification's nodes, and fold them into states, on a CPU."""
    from sglang.kernels.ops.attention.linear import gdn_replayssm_spec_decode as rings
    from sglang.kernels.ops.attention.linear import kda_replayssm_spec_decode as windows

    rings.gdn_replayssm_spec_decode = verify_over_records
    rings.commit_gdn_replayssm_spec, rings.commit_gdn_replayssm_circular = advance, fold
    windows.commit_kda_replayssm_spec_all_layers = fold_windows


def verify_over_records(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    checkpoint_state: Tensor,
    d_cache: Tensor,
    k_cache: Tensor,
    g_cache: Tensor,
    rawv_cache: Tensor | None,
    rawk_cache: Tensor | None,
    beta_cache: Tensor | None,
    out: Tensor,
    query_start_loc: Tensor,
    ssm_state_indices: Tensor,
    replay_indices: Tensor,
    write_pos: Tensor,
    cache_base: Tensor,
    is_flush: Tensor,
    max_cache_len: int,
    max_spec_len: int,
    scale: float,
    use_qk_l2norm_in_kernel: bool,
    null_block_id: int,
    launch_mode: str,
) -> None:
    """Go over chains of as many nodes each: what is read goes to `out` [n, H, V], and records of nodes into rings.

    A state [slots, H, V, K] is without the records that its request's ring has from `cache_base` on, `write_pos` of
    them: changes `d_cache` [rows, H, L, V] by keys `k_cache` [rows, H_k, L, K], after decay `g_cache` [rows, H, L].
    """
    from sgl_kernel.mamba import advanced, gates, unit

    heads, requests = v.shape[1], len(query_start_loc) - 1
    nodes, shared = len(q) // requests, heads // k.shape[1]
    if not torch.equal(query_start_loc, torch.arange(0, len(q) + 1, nodes, dtype=query_start_loc.dtype)):
        raise NotImplementedError("requests with unlike numbers of nodes")
    if any(cache is not None for cache in (rawv_cache, rawk_cache, beta_cache)):
        raise NotImplementedError("rings of 16 bits")
    if not use_qk_l2norm_in_kernel or launch_mode != "verify" or nodes != max_spec_len:
        raise NotImplementedError((launch_mode, nodes, max_spec_len))
    decay, share = (of_all[0] for of_all in gates(A_log, a, b, dt_bias))
    keys, queries = unit(k.float()), (unit(q.float()) * scale).repeat_interleave(shared, 1)
    rows, slots = replay_indices.tolist(), ssm_state_indices[:requests].tolist()
    for request, (row, slot) in enumerate(zip(rows[:requests], slots, strict=True)):
        begin = request * nodes
        if slot <= null_block_id:
            out[begin : begin + nodes] = 0
            continue
        if is_flush[row]:
            raise NotImplementedError("records that were not folded by the commit")
        known, places = int(write_pos[row]), around(cache_base[row], max_cache_len)
        state = replayed(checkpoint_state[slot], d_cache[row], k_cache[row], g_cache[row], places[:known])
        for node, at in enumerate(range(begin, begin + nodes)):
            key, before = keys[at].repeat_interleave(shared, 0), state * decay[at].exp()[:, None, None]
            change = (v[at].float() - (before @ key[..., None])[..., 0]) * share[at][:, None]
            state = advanced(state, key, v[at].float(), decay[at][:, None], share[at])
            out[at] = (state @ queries[at][..., None])[..., 0].to(out.dtype)
            if known + node < max_cache_len:
                place = places[known + node]
                d_cache[row, :, place], k_cache[row, :, place], g_cache[row, :, place] = change, keys[at], decay[at]


def around(base: Tensor, length: int) -> Tensor:
    """Return the places i64[L] of a ring from one on."""
    return (base.long() + torch.arange(length)) % length


def replayed(state: Tensor, changes: Tensor, keys: Tensor, decay: Tensor, places: Tensor) -> Tensor:
    """Return states f32[..., H, V, K] after records at some places of rings, one by one.

    Changes are [..., H, L, V], their keys [..., H_k, L, K], and decay [..., H, L].
    """
    state, shared = state.float(), changes.shape[-3] // keys.shape[-3]
    for place in places.tolist():
        key = keys[..., place, :].float().repeat_interleave(shared, -2)
        state = state * decay[..., place].exp()[..., None, None]
        state = state + changes[..., place, :, None].float() * key[..., None, :]
    return state


def advance(
    *,
    write_pos: Tensor,
    cache_base: Tensor,
    is_flush: Tensor,
    num_accepted: Tensor,
    replay_indices: Tensor,
    max_cache_len: int,
    max_spec_len: int,
    fold_every_commit: bool,
    null_block_id: int,
) -> None:
    """Take the records of accepted nodes, and say of which rings all are to be folded: of those without room for two.

    All cursors are i32[rows]: how many records a ring has, where they begin, and whether they are to be folded.
    """
    there = replay_indices > null_block_id
    rows, accepted = replay_indices[there].long(), num_accepted[there].to(write_pos.dtype)
    if is_flush[rows].any():
        raise NotImplementedError("records that the last commit did not fold")
    known = write_pos[rows] + accepted
    full = known > 0 if fold_every_commit else known + 2 * max_spec_len > max_cache_len
    write_pos[rows], is_flush[rows] = known, full.to(is_flush.dtype)


def fold(
    *,
    checkpoint_state: Tensor,
    d_cache: Tensor,
    k_cache: Tensor,
    g_cache: Tensor,
    d_residual_cache: Tensor | None,
    k_residual_cache: Tensor | None,
    state_batch_indices: Tensor,
    replay_indices: Tensor,
    write_pos: Tensor,
    cache_base: Tensor,
    is_flush: Tensor,
    accept_lens: Tensor,
    mamba_track_indices: Tensor | None,
    mamba_steps_to_track: Tensor | None,
    null_block_id: int,
) -> None:
    """Fold records of all layers [L, ...] into states: all of full rings, and for prefixes those up to a node."""
    if d_residual_cache is not None or k_residual_cache is not None:
        raise NotImplementedError("rings of 16 bits")
    kept_at = [-1] * len(state_batch_indices) if mamba_track_indices is None else mamba_track_indices.tolist()
    nodes = [-1] * len(kept_at) if mamba_steps_to_track is None else mamba_steps_to_track.tolist()
    length = d_cache.shape[-2]
    for place, (slot, row) in enumerate(zip(state_batch_indices.tolist(), replay_indices.tolist(), strict=True)):
        if slot <= null_block_id:
            continue
        known, places = int(write_pos[row]), around(cache_base[row], length)
        records = d_cache[:, row], k_cache[:, row], g_cache[:, row]
        before = checkpoint_state[:, slot].clone()
        if kept_at[place] > null_block_id and nodes[place] >= 0:
            behind = known - int(accept_lens[place]) + nodes[place] + 1
            checkpoint_state[:, kept_at[place]] = replayed(before, *records, places[:behind]).to(before.dtype)
        if is_flush[row]:
            checkpoint_state[:, slot] = replayed(before, *records, places[:known]).to(before.dtype)
            cache_base[row], write_pos[row], is_flush[row] = (int(cache_base[row]) + known) % length, 0, 0


def fold_windows(
    *,
    checkpoint_state: Tensor,
    rawv_cache: Tensor,
    rawk_cache: Tensor,
    gk_cache: Tensor,
    beta_cache: Tensor,
    ssm_state_indices: Tensor,
    accept_lens: Tensor,
    max_cache_len: int,
    num_k_heads: int,
    mamba_track_indices: Tensor | None,
    mamba_steps_to_track: Tensor | None,
    null_block_id: int,
) -> None:
    """Go over the accepted nodes of each slot anew (KDA), whose inputs [L, slots, H, nodes, ...] are kept."""
    from sgl_kernel.mamba import advanced, unit

    shared = rawv_cache.shape[2] // num_k_heads
    kept_at = [-1] * len(ssm_state_indices) if mamba_track_indices is None else mamba_track_indices.tolist()
    nodes = [-1] * len(kept_at) if mamba_steps_to_track is None else mamba_steps_to_track.tolist()
    for place, (slot, accepted) in enumerate(zip(ssm_state_indices.tolist(), accept_lens.tolist(), strict=True)):
        if slot <= null_block_id or accepted <= 0:
            continue
        state = checkpoint_state[:, slot].float()
        for node in range(accepted):
            key = unit(rawk_cache[:, slot, :, node].float()).repeat_interleave(shared, 1)
            given = rawv_cache[:, slot, :, node].float(), gk_cache[:, slot, :, node], beta_cache[:, slot, :, node]
            state = advanced(state, key, *given)
            if node == nodes[place] and kept_at[place] > null_block_id:
                checkpoint_state[:, kept_at[place]] = state.to(checkpoint_state.dtype)
        checkpoint_state[:, slot] = state.to(checkpoint_state.dtype)
