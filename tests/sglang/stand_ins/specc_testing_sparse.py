"""What SGLang has on GPUs alone for Qwen4-Exp's attention, residual streams and look-ups, on a CPU."""

from __future__ import annotations

from functools import partial

import torch
from specc_testing_compressed import widen
from torch import Tensor


def pick_tokens() -> None:
    """Let SGLang attend to tokens that an index picks, and mix residual streams, on a CPU, all in float32."""
    from sglang.srt.layers.attention.qsa import metadata
    from sglang.srt.layers.attention.qsa.qsa_indexer import QSAIndexer
    from sglang.srt.mem_cache import allocation
    from sglang.srt.models import qwen4_exp as model

    QSAIndexer.forward_native = QSAIndexer._forward_impl
    metadata.gather_qsa_compressed_keys = gather
    allocation.get_last_loc_triton = allocation.get_last_loc_torch
    model.HyperConnectionConfig = partial(in_float32, model.HyperConnectionConfig)
    widen(model.Qwen4ExpNGramEmbedding, "forward")


def in_float32(make: type, **given: object) -> object:
    """What says how streams are mixed, without 16 bits."""
    return make(**given | {"params_dtype": torch.float32})


def gather(keys: Tensor, slots: Tensor, starts: Tensor, total: int, most: int, group: int) -> Tensor:
    """The keys [total, ...] of all whole groups of texts; those of text i are from `starts` i32[n + 1] of i on."""
    counts = starts.diff().tolist()
    firsts = [row[: count * group : group] for row, count in zip(slots, counts, strict=True)]
    return keys[torch.cat(firsts).long() // group]
