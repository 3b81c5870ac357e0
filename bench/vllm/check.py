"""Whether vLLM can run on this machine: imports, the GPU, operators of its library on it. Ends with 1 at a failure."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable

import torch

MODULES = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm.platforms",
    "vllm.engine.arg_utils",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.model_executor.models.llama_eagle",
    "vllm.model_executor.models.qwen3_next_mtp",
    "cuda.core",
)


def platform() -> str:
    """vLLM must see CUDA and Triton."""
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    if not (current_platform.is_cuda() and HAS_TRITON):
        raise RuntimeError(f"platform {current_platform}, Triton: {HAS_TRITON}")
    return f"{type(current_platform).__name__}, {torch.cuda.get_device_name()}"


def norm() -> str:
    """RMS norm, beside torch's."""
    from vllm import _custom_ops as ops

    x, weight = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((7, 2048), (2048,)))
    out = torch.full_like(x, float("nan"))
    ops.rms_norm(out, x, weight, 1e-6)
    return near(out, torch.nn.functional.rms_norm(x.float(), (2048,), weight.float(), 1e-6))


def add_norm() -> str:
    """Addition and RMS norm in place, beside torch's."""
    from vllm import _custom_ops as ops

    x, residual = torch.randn(2, 7, 2048, device="cuda", dtype=torch.bfloat16)
    expected = torch.nn.functional.rms_norm((x + residual).float(), (2048,), None, 1e-6)
    ops.fused_add_rms_norm(x, residual, torch.ones(2048, device="cuda", dtype=torch.bfloat16), 1e-6)
    return near(x, expected)


def gate() -> str:
    """SiLU times the other half, beside torch's."""
    x = torch.randn(7, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.full((7, 2048), float("nan"), device="cuda", dtype=torch.bfloat16)
    torch.ops._C.silu_and_mul(out, x)
    left, right = x.float().chunk(2, -1)
    return near(out, torch.nn.functional.silu(left) * right)


def experts() -> str:
    """The two most probable of some experts, beside torch's."""
    from vllm import _custom_ops as ops

    logits = torch.randn(7, 8, device="cuda")
    out = torch.full((7, 2), float("nan"), device="cuda")
    chosen, places = torch.full((2, 7, 2), -1, device="cuda", dtype=torch.int32)
    ops.topk_softmax(out, chosen, places, logits, False)
    expected = logits.softmax(-1).topk(2)
    if (chosen != expected.indices).any():
        raise RuntimeError(f"{chosen.tolist()} for {expected.indices.tolist()}")
    return near(out, expected.values)


def near(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """The relative distance, which is that of bf16."""
    distance = float((actual.float() - expected).norm() / expected.norm())
    if not distance < 1e-2:
        raise RuntimeError(f"relative distance {distance}")
    return f"relative distance {distance:.1e}"


def tried(name: str, call: Callable[[], object]) -> bool:
    """Say how it went."""
    try:
        print(f"{name}: {call()}", flush=True)
    except BaseException:
        print(f"{name}: FAILED\n{traceback.format_exc()[-1500:]}", flush=True)
        return False
    return True


def main() -> int:
    """Try all."""
    good = [tried(name, lambda name=name: importlib.import_module(name) and "imported") for name in MODULES]
    good += [tried(call.__name__, call) for call in (platform, norm, add_norm, gate, experts)]
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
