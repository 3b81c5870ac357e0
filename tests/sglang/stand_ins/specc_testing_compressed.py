"""What SGLang has on GPUs alone for DeepSeek-V4's attention and residual streams, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import sgl_kernel.compressed as kernels
import torch
from torch import Tensor

MODELS = ("deepseek_v4.DeepseekV4ForCausalLM", "deepseek_v4_dspark.DeepseekV4ForCausalLMDSpark")


def compress_keys() -> None:
    """Let SGLang attend over compressed keys, and mix residual streams, on a CPU."""
    from sglang.kernels.ops.attention.dsv4 import attn as stores
    from sglang.kernels.ops.attention.dsv4 import compress, metadata_kernel, norm_rope
    from sglang.kernels.ops.kvcache import dsv4_fp4_index_k_cache as fourths
    from sglang.kernels.ops.layernorm import mhc, mhc_head
    from sglang.srt.layers import engram
    from sglang.srt.layers.attention import deepseek_v4_backend as attention
    from sglang.srt.layers.attention.dsv4 import compressor, dsv41_sparse, indexer
    from sglang.srt.layers.attention.dsv4.v41_indexer import scoring
    from sglang.srt.mem_cache import allocation, kv_cache_configurator
    from sglang.srt.mem_cache import deepseek_v4_memory_pool as pools
    from sglang.srt.model_executor import model_runner
    from sglang.srt.models import deepseek_v4 as model
    from sglang.srt.models import deepseek_v4_mhc
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    norm_rope._jit_fused_rope_module = lambda: calls(turn)
    norm_rope._jit_main_q_norm_rope_module = lambda *given: calls(normalize_queries)
    norm_rope._jit_main_k_norm_rope_flashmla_module = lambda *given: calls(store_keys(given[3]))
    norm_rope._jit_main_q_indexer_rope_hadamard_quant_module = lambda *given: calls(index_queries)
    compress._jit_compress_plan_module = kernels.Plans
    compress._jit_compress_module = lambda head, *types: kernels.Compressor(types[-1], head)
    compress._jit_compress_norm_rope_module = lambda *given: calls(store_entries(given[3]))
    metadata_kernel._init_compressed_attn_metadata_triton = entries_of
    mhc.hc_split_sinkhorn_kernel = lambda *sizes: mixing(*sizes)
    mhc.mhc_combine = read_streams
    mhc_head.fused_hc_head = model.hc_head_torch
    deepseek_v4_mhc.post = write_streams
    model.get_rope_wrapper = lambda **_: None  # which nothing of a GPU reads
    compressor.linear_bf16_fp32 = lambda x, weight: x.float() @ weight.float().T
    indexer.topk_transform_paged = indexer.topk_transform_pytorch_vectorized
    attention._create_flashmla_metadata = lambda: None
    attention._is_cuda = True  # so lengths are known to the device alone
    attention.DeepseekV4AttnBackend._flash_mla_with_kvcache = staticmethod(kernels.attend_slots)
    attention.DeepseekV4AttnBackend._swa_interleaved = False
    attention._maybe_precompute_flashmla_sched_meta = lambda *_, **__: None
    pools.clear_unaccepted_c128_draft_states = forget
    kv_cache_configurator.current_platform = NoCpu(kv_cache_configurator.current_platform)
    allocation.get_last_loc_triton = allocation.get_last_loc_torch
    model_runner.adjust_config_with_unaligned_cpu_tp = lambda config, *_: config  # the keys are every rank's
    torch.cpu.empty_cache = lambda: None
    torch.cuda.is_current_stream_capturing = lambda: False
    stores._jit_fused_store_module = lambda **given: SimpleNamespace(run=store_finished(given["page_size"]))
    fourths.store_fp4_index_k_cache = store_indexed
    scoring.fp4_index_logits_decode = kernels.score_fourths
    widen(engram.EngramEmbedding, "forward")
    widen(dsv41_sparse.DeepseekV41Compressor, "finish")
    widen(pools.DeepSeekV4TokenToKVPool, "get_low_ratio_index_k_dequant")
    for name in MODELS:
        HookRegistry.register(f"sglang.srt.models.{name}.post_load_weights", in_float32, HookType.AFTER)


class NoCpu:
    """A platform, said to be no CPU: a pool in 8 bits asks a CPU for what kernels have that this one lacks."""

    def __init__(self, platform: object) -> None:
        self.platform = platform

    def is_cpu(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.platform, name)


def calls(function: Callable[..., Any]) -> Any:
    """A kernel's module, of which SGLang calls `forward`."""
    return SimpleNamespace(forward=function)


def in_float32(_: Any, model: Any, *__: Any, **___: Any) -> None:
    """Keep weights of 16 bits in float32, in which texts are the same however they are cut."""
    for weight in model.parameters():
        if weight.dtype is torch.bfloat16:
            weight.data = weight.data.float()


def widen(of: type, method: str) -> None:
    """Have a method return in float32 what it returns in 16 bits."""
    own = getattr(of, method)
    setattr(of, method, lambda *given, **named: own(*given, **named).float())


def turn(q: Tensor, k: Tensor | None, turns: Tensor, positions: Tensor, inverse: bool) -> None:
    """Turn queries [n, H, 64], and keys, in place."""
    for x in filter(lambda given: given is not None, (q, k)):
        x.copy_(kernels.rotate(x, turns, positions, inverse=inverse))


def normalize_queries(q: Tensor, out: Tensor, turns: Tensor, positions: Tensor, eps: float) -> None:
    """Norm and turn queries [n, H, E]."""
    out.copy_(kernels.rotate(kernels.normalize(q, None, eps), turns, positions))


def store_keys(page: int) -> Callable[..., None]:
    """Norm, turn and store keys [n, E], on such pages."""

    def forward(
        kv: Tensor, weight: Tensor, turns: Tensor, positions: Tensor, slots: Tensor, cache: Tensor, eps: float
    ) -> None:
        keys = kernels.rotate(kernels.normalize(kv, weight, eps), turns, positions)
        kernels.store(keys, cache.view(torch.uint8), slots, page)

    return forward


def store_finished(page: int) -> Callable[..., None]:
    """Store entries [n, E] that are normed and turned, on such pages."""
    return lambda x, cache, slots: kernels.store(x.float(), cache.view(torch.uint8), slots, page)


def store_indexed(*, cache: Tensor, loc: Tensor, page_size: int, rne: bool, **given: Tensor) -> None:
    """Store keys of an indexer [n, 128] in 4 bits; a tie goes to the even one."""
    assert rne
    kernels.store_fourths(given["input"], cache, loc, page_size)


def index_queries(
    q: Tensor, out: Tensor, weight: Tensor, weights: Tensor, scale: float, turns: Tensor, positions: Tensor
) -> None:
    """Make an indexer's queries [n, H, 128] in 8 bits, and weights [n, H, 1] with their scales."""
    turned = kernels.hadamard(kernels.rotate(q, turns, positions))
    sizes = turned.abs().amax(-1, keepdim=True).clamp(min=kernels.LEAST) / kernels.LARGEST
    out.view(torch.uint8).copy_(kernels.eighth(turned, sizes))
    weights.copy_(weight.float()[..., None] * scale * sizes)


def store_entries(page: int) -> Callable[..., None]:
    """Norm, turn and store compressed entries, on such pages."""

    def forward(
        kv: Tensor,
        plan: Tensor,
        weight: Tensor,
        eps: float,
        turns: Tensor,
        slots: Tensor,
        cache: Tensor,
        decode: bool,
        ratio: int,
    ) -> None:
        made = plan[:, 0] % ratio == 0
        rows = torch.arange(len(plan)) if decode else plan[:, 1]
        entries = kernels.rotate(kernels.normalize(kv, weight, eps), turns, (plan[:, 0] - ratio).clamp(min=0))[made]
        if kv.shape[1] == kernels.HEAD:
            kernels.store(entries, cache, slots[rows[made]], page)
        else:
            kernels.store_indexed(kernels.hadamard(entries), cache, slots[rows[made]], page)

    return forward


def entries_of(
    lengths: Tensor,
    positions: Tensor,
    slots: Tensor,
    pages: Tensor | None = None,
    page: int = 0,
    compute_page_indices: bool = True,
) -> tuple[Tensor | None, ...]:
    """Where entries of 4 and 128 tokens are written, their positions, how many there are, and slots of the latter."""
    found = list[Tensor | None]()
    for ratio in (4, 128):
        written = lengths[: len(slots)]
        found.append(torch.where(written % ratio == 0, slots // ratio, 0).long())
        found += [positions // ratio * ratio, lengths // ratio, (lengths // ratio).clamp(min=1)]
    if not compute_page_indices or pages is None:
        return (*found, None)
    each = page // 128
    seen = torch.arange(each * pages.shape[1], dtype=torch.int32)
    listed = pages[:, seen // each] * each + seen % each
    return (*found, torch.where(seen < (lengths // 128)[:, None], listed, -1).int())


def mixing(streams: int, rounds: int, eps: float) -> Callable[..., None]:
    """Say how so many residual streams are read, written and mixed."""

    def kernel(mixes: Tensor, scale: Tensor, base: Tensor, *outs: Tensor) -> None:
        for out, made in zip(outs, kernels.sinkhorn(mixes, scale, base, streams, rounds, eps), strict=True):
            out.copy_(made)

    return kernel


def read_streams(streams: Tensor, weights: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Add streams [n, k D] up with weights [n, k]."""
    return (streams.unflatten(1, (count, -1)) * weights[..., None]).sum(1).to(dtype)


def write_streams(_: Any, x: Tensor, streams: Tensor, weights: Tensor, mix: Tensor) -> Tensor:
    """Return streams [n, k, D] mixed, with what a layer made x [n, D] added by weights [n, k]."""
    return (weights[..., None] * x[:, None] + mix.transpose(1, 2) @ streams.float()).to(streams.dtype)


def forget(
    states: Tensor, rows: Tensor, lengths: Tensor, accepted: Tensor, *, ring_size: int, num_draft_tokens: int
) -> None:
    """Clear the states [places, row] of drafts that were not accepted: values to 0, scores to -inf."""
    node = torch.arange(num_draft_tokens)
    places = rows[:, None] * ring_size + (lengths[:, None] + node) % ring_size
    left = places[node >= accepted[:, None]]
    half = states.shape[1] // 2
    states[left, :half], states[left, half:] = 0, float("-inf")
