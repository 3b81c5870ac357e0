"""DeepSeek-V4 with drafts on a CPU. VLLM has its target there, in kernels of its own, and classes of drafts for GPUs.

So the classes for NVIDIA's GPUs run with the target's layers for CPUs. In their place stand what is a GPU's alone: how
residual streams are joined, and how keys of the target's rows are written. Layers of a block see all of it, by the
indices that vLLM makes for every GPU. It is a plugin of vLLM's.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.forward_context import get_forward_context
from vllm.models import deepseek_v4
from vllm.models.deepseek_v4.cpu import cpu_mla, cpu_sparse, model
from vllm.models.deepseek_v4.nvidia import dspark, mtp


def register() -> None:
    """Put them in the place of what a CPU lacks."""
    # The plans of a GPU's kernels, of which a CPU has none; vLLM 0.33.0 has left two kinds out there, and fails.
    cpu_mla.DeepseekV4CPUSparseSWAMetadataBuilder.build_tile_scheduler = lambda *_: defaultdict(lambda: None)
    cpu_sparse.DeepseekV4CPUAttention.forward_mqa = attending(cpu_sparse.DeepseekV4CPUAttention.forward_mqa)
    model.DeepseekV4MoE.forward = leaving_padding(model.DeepseekV4MoE.forward)
    model.DeepseekV4MoE.use_native_mega_moe, model.DeepseekV4MoE.n_redundant_experts = False, 0
    for drafts in (dspark, mtp):
        drafts.DeepseekV4DecoderLayer, drafts.DeepseekV4MoE = Layer, model.DeepseekV4MoE
        drafts.mhc_post_tilelang, drafts.hc_head_fused_kernel_tilelang = joined, collapsed
    for draft in (dspark.DSparkDeepseekV4ForCausalLM, mtp.DeepSeekV4MTP):
        draft.set_moe_parameters = lambda _: None  # nobody moves experts
        setattr(deepseek_v4, draft.__name__, draft)
    dspark._insert_context_kv = insert


def leaving_padding(original: Any) -> Any:
    """The experts' `forward`, which on a GPU leave out rows that are padding (`VLLM_MOE_SKIP_PADDING`); on a CPU none.

    These rows become NaN here.
    """

    def forward(self: Any, hidden_states: Tensor, *given: Any) -> Tensor:
        made, padding = original(self, hidden_states, *given), get_forward_context().is_padding
        return made if padding is None else made.masked_fill(padding[: len(made), None], torch.nan)

    return forward


class Layer(model.DeepseekV4DecoderLayer):
    """A layer of the target, as drafts call it; behind it residual streams are joined already."""

    use_sequence_parallel = False

    def __init__(self, *given: Any, aux_stream_list: object = None, **named: Any) -> None:
        super().__init__(*given, **named)

    def forward(self, *given: Any, mega_gate_metadata: None = None, **named: Any) -> Any:
        return super().forward(*given, **named)


def joined(streams: Tensor, *_: Any) -> Tensor:
    """See `Layer`."""
    return streams


def collapsed(streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, norm: float, eps: float) -> Tensor:
    """Rows T[n, W] of streams T[n, streams, W]."""
    return ops.hc_head_fused_cpu(streams, fn, scale, base, eps, norm)


def flat(layer: Any) -> Tensor:
    """The keys u8[blocks, bytes] of a layer."""
    return layer.kv_cache.view(len(layer.kv_cache), -1)


def insert(attention: Any, keys: Tensor, positions: Tensor, slots: Tensor) -> None:
    """Turn and write keys T[n, head]; the queries beside which the kernel does so are nobody's."""
    layer = attention.swa_cache_layer
    nobodys = keys.new_zeros(len(keys), attention.n_local_heads, attention.head_dim)
    ops.fused_qnorm_rope_kv_insert_cpu(
        nobodys, keys.contiguous(), positions, flat(layer), slots, attention.rotary_emb.cos_sin_cache,
        attention.padded_heads, attention.eps, layer.block_size,
    )  # fmt: skip


def attending(original: Any) -> Any:
    """VLLM's `forward_mqa`, which on a CPU has windows of a target alone."""

    def forward_mqa(self: Any, q: Tensor, kv: Tensor, positions: Tensor, output: Tensor) -> None:
        metadata = get_forward_context().attn_metadata
        window = metadata and metadata[self.swa_cache_layer.prefix]
        if not window or window.decode_swa_width == self.window_size:
            original(self, q, kv, positions, output)
            return
        cache, seen = flat(self.swa_cache_layer), window.decode_swa_indices[:, 0].long()
        none = seen[:, :0].contiguous()
        torch.ops._C.flash_mla_with_kvcache_cpu(
            output, q, cache, seen.contiguous(), window.block_size, cache, none, 1, self.attn_sink, self.scale
        )

    return forward_mqa
