"""What SGLang has on GPUs alone for recurrent layers, on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu


def keep_states() -> None:
    """Let SGLang speculate for targets that keep recurrent states, and keep states of prefixes, on a CPU.

    States that are accepted are copied by what SGLang itself has for other states on other devices.
    """
    import specc_testing_spaces as spaces
    from sgl_kernel.mamba import (
        causal_conv1d_fn_cpu,
        causal_conv1d_update_cpu,
        chunk_kda,
        gated_delta_rule_update,
        gates,
    )
    from sglang.kernels.ops.attention.fla import fused_norm_gate, layernorm_gated
    from sglang.kernels.ops.mamba import mamba_state_scatter_triton as copies
    from sglang.srt.arg_groups import mamba_hook
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as backends
    from sglang.srt.layers.attention.linear import gdn_backend, kda_backend
    from sglang.srt.layers.attention.linear.kernels import gdn_triton, kda_triton
    from sglang.srt.layers.attention.mamba import mamba
    from sglang.srt.models import qwen2_moe
    from specc_testing_records import keep_records

    keep_records()
    mamba_hook._platform_supports_mamba_cache_extra_buffer = lambda: True
    fused_norm_gate.rms_norm_gated, layernorm_gated.rms_norm_gated = norm_gated, norm_by_head
    qwen2_moe.fused_gate_sigmoid_mul_add = add_gated
    gdn_backend.fused_gdn_gating = gates
    for module in (gdn_triton, kda_triton):
        module.fused_sigmoid_gating_delta_rule_update = gated_delta_rule_update
    kda_backend.causal_conv1d_fn, kda_triton.chunk_kda = causal_conv1d_fn_cpu, chunk_kda
    mamba.causal_conv1d_fn_triton, mamba.causal_conv1d_update_triton = causal_conv1d_fn_cpu, causal_conv1d_update_cpu
    mamba.mamba_chunk_scan_combined, mamba.selective_state_update = spaces.scan, spaces.update
    for name in ("fused_mamba_state_scatter_with_mask", "fused_conv_window_scatter_with_mask"):
        setattr(copies, name, backends.HybridLinearAttnBackend._scatter_speculative_state_with_mask)
    backends.track_mamba_states_all_layers = track


def norm_gated(
    x: Tensor, g: Tensor, weight: Tensor, bias: Tensor | None, activation: str, *, eps: float, **options: Any
) -> Tensor:
    """Return x [n, V] over its size, times weights [V] and activated gates g [n, V]."""
    if bias is not None or any(options.values()):
        raise NotImplementedError(options)
    open_by = {"silu": silu, "swish": silu, "sigmoid": torch.sigmoid}[activation]
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight * open_by(g)).to(x.dtype)


def norm_by_head(
    *, x: Tensor, z: Tensor, is_rms_norm: bool, norm_before_gate: bool, group_size: int | None, **options: Any
) -> Tensor:
    """Do the same with gates z [n, V], or [b, heads, V] of n rows."""
    if not (is_rms_norm and norm_before_gate and group_size is None):
        raise NotImplementedError((is_rms_norm, norm_before_gate, group_size))
    return norm_gated(x, z.reshape(x.shape), **options)


def add_gated(hidden: Tensor, weight: Tensor, shared: Tensor, experts: Tensor) -> None:
    """Add what the shared expert makes [n, D] of hidden states [n, D] to that of others, by a gate of weights [D]."""
    experts += torch.sigmoid(hidden @ weight)[:, None] * shared


def track(
    windows: Tensor,
    states: Tensor,
    rows: Tensor,
    tracked: Tensor,
    slots: Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """Copy windows and states of all layers [L, slots, ...] from the rows of some requests to slots of prefixes."""
    chosen = tracked[:batch_size].nonzero()[:, 0]
    for pool in (windows, states):
        pool[:, slots[chosen].long()] = pool[:, rows[chosen].long()]
