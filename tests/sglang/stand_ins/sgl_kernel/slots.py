"""Reading and writing of the table of KV slots, copies of keys and values between slots, and of tokens to others."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy slots to slots in every buffer, as if all were read before any is written."""
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for pointer, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(pointer + source * stride, stride) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(pointer + target * stride, row, stride)


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, slots: Tensor, pool_len: int
) -> None:
    """Write the slots of every request's columns from start to end, one request after the other."""
    taken = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[row, first:last] = slots[taken : taken + last - first].to(req_to_token.dtype)
        taken += last - first


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out: Tensor, pool_len: int
) -> None:
    """Read the slots of every request's columns from start to end, one request after the other."""
    given = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        out[given : given + last - first] = req_to_token[row, first:last].to(out.dtype)
        given += last - first


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, out: Tensor, pool_len: int, topk: int, steps: int
) -> None:
    """Read the slots behind every request's tokens, topk * steps of them."""
    width = torch.full_like(seq_lens, topk * steps)
    assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, seq_lens, seq_lens + width, out, pool_len)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, steps: int, pool_len: int
) -> Tensor:
    """A table with a row per branch: the request's tokens and behind them the branch's own drafts."""
    table = torch.zeros(len(req_pool_indices), topk, pool_len, dtype=req_to_token.dtype)
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        table[i, :, :length] = req_to_token[row, :length]
        branches = req_to_token[row, length : length + topk * steps].view(topk, steps)
        table[i, :, length : length + steps] = branches
    return table.view(-1, pool_len)


def rotate_input_ids_cpu(tokens: Tensor, starts: Tensor, lengths: Tensor, new: Tensor, places: Tensor | None) -> None:
    """Move every request's tokens one place forward, and write its new one [b, 1] at `places`, or as the last."""
    for i, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        end = start + length
        tokens[start : end - 1] = tokens[start + 1 : end].clone()
        tokens[end - 1 if places is None else int(places[i])] = new.flatten()[i]
