"""What SGLang has on GPUs alone for Qwen4-Exp's attention, residual streams and look-ups, on a CPU.

On a GPU the library for its attention alone may not be there.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor


def pick_tokens() -> None:
    """Let SGLang attend to tokens that an index picks, and mix residual streams, on a CPU, all in float32."""
    from sglang.srt.layers.attention.qsa import metadata
    from sglang.srt.layers.attention.qsa.qsa_indexer import QSAIndexer
    from sglang.srt.mem_cache import allocation
    from sglang.srt.models import qwen4_exp as model
    from specc_testing_compressed import widen

    QSAIndexer.forward_native = QSAIndexer._forward_impl
    metadata.gather_qsa_compressed_keys = gather
    allocation.get_last_loc_triton = allocation.get_last_loc_torch
    model.HyperConnectionConfig = partial(in_float32, model.HyperConnectionConfig)
    widen(model.Qwen4ExpNGramEmbedding, "forward")


def attend_by_fa3() -> None:
    """Let SGLang attend to tokens that are picked by FlashAttention 3 where FlashAttention 2 and 4 are not there."""
    if find_spec("flash_attn") is None:
        from sglang.kernels.ops.attention.flash_attention_v3 import flash_attn_varlen_func
        from sglang.srt.layers.attention import qwen_sparse_attn_backend as attention

        attention._resolve_flash_attn_varlen_func = lambda: flash_attn_varlen_func


def in_float32(make: type, **given: object) -> object:
    """What says how streams are mixed, without 16 bits."""
    return make(**given | {"params_dtype": torch.float32})


def gather(keys: Tensor, slots: Tensor, starts: Tensor, total: int, most: int, group: int) -> Tensor:
    """The keys [total, ...] of all whole groups of texts; those of text i are from `starts` i32[n + 1] of i on."""
    counts = starts.diff().tolist()
    firsts = [row[: count * group : group] for row, count in zip(slots, counts, strict=True)]
    return keys[torch.cat(firsts).long() // group]
