"""A machine that SGLang is said to run on: it has GPUs of an architecture, of which nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.arg_groups import memory_hook
from sglang.srt.arg_groups.model_overrides import qwen3_vl
from sglang.srt.layers.quantization import QUANTIZATION_METHODS
from sglang.srt.runtime_context import override_platform
from transformers import AutoConfig, Qwen2Config

for kind in ("k3_dspark", "mimo", "mimo_v2", "minimax_m3_dspark"):
    AutoConfig.register(kind, type(kind, (Qwen2Config,), {"model_type": kind}))
"""In the place of the code that comes with a model, which is not run."""
QUANTIZATION_METHODS.setdefault("mxfp4", QUANTIZATION_METHODS["mxfp8"])
"""SGLang has it on GPUs alone; nothing is asked of it but that it is there."""


def platform(gpu: str) -> dict[str, Any]:
    """Return what SGLang asks of a machine with such a GPU."""
    capability = divmod(int(gpu.removeprefix("sm_")), 10)
    major = capability[0]
    others = ("is_hip", "is_npu", "is_xpu", "is_musa", "is_mps", "is_sm110", "has_amx")
    return dict.fromkeys(others, False) | {
        "is_cuda": True,
        "is_sm90": major == 9,
        "is_hopper_with_cuda_12_3": major == 9,
        "is_sm100": major == 10,
        "is_sm100_or_sm110": major == 10,
        "is_sm120": major == 12,
        "is_blackwell": major in (10, 12),
        "has_flashinfer": True,
        "device_sm": 10 * major + capability[1],
        "device_capability": capability,
    }


@contextmanager
def machine(gpu: str, memory_gib: int = 80) -> Iterator[None]:
    """Say that the machine has such GPUs, with so much memory each."""
    said = platform(gpu)
    torch.cuda.get_device_capability = lambda *_: said["device_capability"]
    for module in (memory_hook, qwen3_vl):
        module.get_device_memory_capacity = lambda *_: memory_gib * 1024
    qwen3_vl.is_sm90_supported = lambda: gpu == "sm_90"
    with override_platform(**said):
        yield
