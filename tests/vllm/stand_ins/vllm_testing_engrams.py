"""DeepSeek-V4.1 on a CPU, where vLLM has none of it: its classes for NVIDIA's GPUs, over windows alone.

What a GPU's kernels do is done by the ones that vLLM has for V4 on CPUs, or by its own references in torch. N-grams are
found by vLLM's kernels, in Triton's interpreter, which does not run the one that reads their entries. It is a plugin of
vLLM's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import vllm_testing_compressed as compressed
from torch import Tensor
from torch.nn.functional import rms_norm
from vllm import _custom_ops as ops
from vllm.model_executor.kernels.mhc.torch import mhc_post_torch, mhc_pre_delayed_torch
from vllm.models.deepseek_v4.cpu import cpu_sparse
from vllm.models.deepseek_v4.cpu import model as cpu_model
from vllm.models.deepseek_v41.attention import DeepseekV4Attention
from vllm.models.deepseek_v41.common import engram
from vllm.models.deepseek_v41.nvidia import dspark, model
from vllm.platforms.cpu import CpuPlatform

PAGE, ROTATED = 256, 64


def register() -> None:
    """Put them in the place of what a CPU lacks."""
    compressed.register()
    torch.cuda.Stream = torch.cuda.Event
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=1)
    torch.accelerator.current_device_index = lambda: 0
    CpuPlatform.check_and_update_config = paged(CpuPlatform.check_and_update_config)
    model._select_dsv4_attn_cls = lambda _: Attention
    model.DeepseekV4MoE = Experts
    model.mhc_post_tilelang = dspark.mhc_post_tilelang = mhc_post_torch
    model.mhc_pre_delayed_tilelang, model.mhc_shifted_post_pre = collapsed, shifted
    model.DeepseekV41LLMForCausalLM.set_moe_parameters = lambda _: None  # nobody moves experts
    dspark._insert_context_kv = compressed.insert
    engram.ParallelEngramEmbedding.lookup = looked_up


def paged(original: Any) -> Any:
    """A CPU's own update of a VllmConfig, behind which blocks of the target are as large as on a GPU."""

    def check_and_update_config(config: Any) -> None:
        original(config)
        if config.model_config is not None and config.model_config.hf_config.model_type == "deepseek_v41":
            config.cache_config.block_size = PAGE

    return staticmethod(check_and_update_config)


def looked_up(table: Any, entries: Tensor, out: Tensor, background: bool = False) -> None:
    """Entries T[n, columns, W] of a table in 8 bits, by their numbers; zeros where there is none."""
    weights, powers = table.weight.float(), table.weight_scale_inv.int() - 127
    scaled = weights * torch.exp2(powers.float()).repeat_interleave(table.block_size, 1)
    out.copy_(scaled[entries.clamp(min=0)] * (entries >= 0)[..., None])


class Experts(cpu_model.DeepseekV4MoE):
    """Experts of the target for CPUs."""

    def __init__(self, vllm_config: Any, prefix: str = "", **_: object) -> None:
        vllm_config.model_config.hf_config.mlp_layer_types = []
        super().__init__(vllm_config, prefix)

    def defers_finalize(self, _: int) -> bool:
        return False

    def forward(self, hidden_states: Tensor, input_ids: Tensor | None = None, _: object = None) -> Tensor:
        return super().forward(hidden_states, input_ids)


def collapsed(residual: Tensor, *given: Any, norm_weight: Tensor, norm_eps: float, **named: Any) -> tuple[Tensor, ...]:
    """How streams T[n, streams, W] are mixed behind the next part, and what that reads."""
    post, mixed, read, before = mhc_pre_delayed_torch(residual, *given, **named)
    return post, mixed, rms_norm(read, read.shape[-1:], norm_weight, norm_eps), before


def shifted(
    x: Tensor, residual: Tensor, post: Tensor, mixed: Tensor, *given: Any, capture_aux: bool = False,
    stream: None = None, reduce_results: bool = False, **named: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Join streams behind a part, and collapse them for the next one."""
    residual = mhc_post_torch(x, residual, post, mixed)
    return residual, *collapsed(residual, *given, **named), residual.mean(1) if capture_aux else residual[:0, 0]


class Attention(DeepseekV4Attention):
    """Attention over windows, by kernels for CPUs."""

    backend_cls = cpu_sparse.DeepseekV4CPUSparseBackend
    process_weights_after_loading = cpu_sparse.DeepseekV4CPUAttention.process_weights_after_loading
    _o_proj = cpu_sparse.DeepseekV4CPUAttention._o_proj
    _split_qkv_and_norm = cpu_sparse.DeepseekV4CPUAttention._split_qkv_and_norm
    _packed = cpu_sparse.DeepseekV4CPUAttention._wrap_wo_a_process_weights_after_loading

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._packed()

    @classmethod
    def get_padded_num_q_heads(cls, num_heads: int) -> int:
        return num_heads

    def forward_mqa(self, *given: Any) -> None:
        """See `vllm_testing_compressed.attending`."""
        cpu_sparse.DeepseekV4CPUAttention.forward_mqa(self, *given)

    def _fused_qnorm_rope_kv_insert(self, q: Tensor, kv: Tensor, positions: Tensor, attn_metadata: Any) -> Tensor:
        """Turn queries, and turn and write keys."""
        if isinstance(attn_metadata, dict):
            compressed.insert(self, kv, positions, attn_metadata[self.swa_cache_layer.prefix].slot_mapping)
        forth = self.rotary_emb.cos_sin_cache.clone()
        forth[:, forth.shape[1] // 2 :].neg_()  # the kernel turns back
        return ops.inverse_gptj_rope_o_proj_cpu(q.contiguous(), positions, forth.float(), ROTATED).to(q.dtype)
