"""What vLLM 0.33.0 takes where its command line says nothing: attention, blocks, requests, graphs, sampling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from specc.compiler.config.archs import Gpu

OWN_LAYERS = r"DeepseekV4For"
"""Classes whose layers have attention of their own, over compressed rows and a window."""
_LARGEST_GRAPHS: Mapping[str, int] = {"GptOss": 1024}
"""What the name of a class begins with -> tokens of the largest graph, where nothing of graphs is written."""
DATA_CENTER = ("sm_100", "sm_103")
HOPPER = ("sm_90",)


class VllmBackend(NamedTuple):
    """An attention backend of vLLM's.

    Attributes:
        captured: whether it makes the metadata of decode steps on the device, so that drafts can be a graph.
        blocks: sizes of blocks that it has, of which another is no multiple; none for multiples of 16.

    """

    captured: bool
    blocks: tuple[int, ...] = ()


BACKENDS: Mapping[str, VllmBackend] = {
    "FLASH_ATTN": VllmBackend(captured=True),
    "TRITON_ATTN": VllmBackend(captured=True),
    "FLASHINFER": VllmBackend(captured=False),
    "FLEX_ATTENTION": VllmBackend(captured=False),
    "TRITON_MLA": VllmBackend(captured=True),
    "FLASH_ATTN_MLA": VllmBackend(captured=False),
    "FLASHINFER_MLA": VllmBackend(captured=False, blocks=(32, 64)),
    "FLASHMLA": VllmBackend(captured=False, blocks=(64,)),
    "CUTLASS_MLA": VllmBackend(captured=False, blocks=(128,)),
    "FLASH_ATTN_MLA_SPARSE": VllmBackend(captured=True, blocks=(64,)),
    "FLASHMLA_SPARSE": VllmBackend(captured=False, blocks=(64,)),
    "FLASHMLA_SPARSE_DSV4": VllmBackend(captured=True, blocks=(256,)),
    "FLASHINFER_MLA_SPARSE_DSV4": VllmBackend(captured=True, blocks=(256,)),
    "CPU_ATTN": VllmBackend(captured=False, blocks=(128,)),
}
"""vLLM's backends that are known here."""

ON_DATA_CENTER: Mapping[str, VllmBackend] = {"FLASHINFER": VllmBackend(captured=True)}
"""What is otherwise on a B200: FlashInfer has kernels of TensorRT-LLM's there."""


class VllmDefault(NamedTuple):
    """An attention backend that vLLM takes by itself: the first whose conditions hold; an empty one always does.

    Attributes:
        backend: its name.
        archs: GPUs.
        caches: layouts of the KV cache.
        dtypes: element types of the server.
        kv_cache: whether it is for a KV cache of 8 bits alone.
        architectures: what the name of the model's class begins with, a regular expression.

    """

    backend: str
    archs: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    kv_cache: bool = False
    architectures: str = ""


DEFAULTS: tuple[VllmDefault, ...] = (
    VllmDefault("FLASHINFER_MLA_SPARSE_DSV4", ("sm_120",), architectures=OWN_LAYERS),
    VllmDefault("FLASHMLA_SPARSE_DSV4", architectures=OWN_LAYERS),
    VllmDefault("FLASH_ATTN_MLA_SPARSE", HOPPER, ("dsa",)),
    VllmDefault("FLASHMLA_SPARSE", DATA_CENTER, ("dsa",)),
    VllmDefault("TRITON_MLA", caches=("mla",), dtypes=("float32",)),
    VllmDefault("FLASH_ATTN_MLA", HOPPER, ("mla",)),
    VllmDefault("FLASHINFER_MLA", DATA_CENTER, ("mla",)),
    VllmDefault("TRITON_MLA", caches=("mla",)),
    VllmDefault("TRITON_ATTN", caches=("mha",), dtypes=("float32",)),
    VllmDefault("FLASHINFER", DATA_CENTER, ("mha",)),
    VllmDefault("FLASH_ATTN", HOPPER, ("mha",)),
    VllmDefault("TRITON_ATTN", caches=("mha",), architectures=r"GptOss|MiMoV2"),
    VllmDefault("FLASHINFER", caches=("mha",), kv_cache=True),
    VllmDefault("FLASH_ATTN", caches=("mha",)),
)
"""The attention backends that vLLM takes by itself: FlashAttention 2 has no sinks, and no KV cache of 8 bits."""


def attention(gpu: Gpu, cache: str, dtype: str, architecture: str, *, small_cache: bool) -> str | None:
    """Return the attention backend of a model where none is written; None where none is known here."""
    if gpu.is_cpu:
        return "CPU_ATTN" if cache == "mha" else None
    return next(
        (
            row.backend
            for row in DEFAULTS
            if (not row.archs or gpu.arch in row.archs)
            and (not row.caches or cache in row.caches)
            and (not row.dtypes or dtype in row.dtypes)
            and (not row.kv_cache or small_cache)
            and re.match(row.architectures, architecture)
        ),
        None,
    )


def is_captured(backend: str, arch: str) -> bool:
    """Return whether drafts with this attention can be a graph."""
    modes = ON_DATA_CENTER.get(backend) if arch in DATA_CENTER else None
    modes = modes or BACKENDS.get(backend)
    return modes is not None and modes.captured


BLOCK = 16
"""Tokens of a block, where the backends have it."""


def block_of(backends: set[str]) -> int:
    """Return the tokens of a block where nothing of it is written: the fewest that every backend has."""
    return max([BLOCK, *(min(sizes) for name in backends if name in BACKENDS and (sizes := BACKENDS[name].blocks))])


def max_requests(gpu: Gpu, ranks: int = 1) -> int:
    """Return how many requests a server keeps where nothing of it is written."""
    if gpu.is_cpu:
        return 128 * ranks
    return 1024 if gpu.memory >= 70 and gpu.arch != "sm_80" else 256


def most_captured(requests: int, tokens: int, arch: str, architecture: str = "") -> int:
    """Return of how many tokens vLLM's largest graph is, for requests with so many tokens in a step.

    ``architecture`` is the target's class.
    """
    for begin, largest in _LARGEST_GRAPHS.items():
        if architecture.startswith(begin):
            return largest
    return min(2 * requests * tokens, 1024 if arch in DATA_CENTER else 512)


_STEPS = ((8, 64, 8), (64, 257, 16), (288, 1 << 16, 32))


def buckets_up_to(most: int) -> list[int]:
    """Return sizes of batches up to the largest: more of the small ones, which are the most frequent."""
    small = [size for size in (1, 2, 4) if size <= most]
    large = [size for begin, end, step in _STEPS for size in range(begin, min(end, most + 1), step)]
    return sorted({*small, *large, most})


SAMPLED: Mapping[str, float] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""What a request of the OpenAI server is sampled with that says nothing of it, where the model says nothing either."""
