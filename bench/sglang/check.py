"""Whether SGLang can run on this machine: imports, the GPU, kernels of its libraries on it. Ends with 1 at a failure.

What the bundle was made without, FlashAttention 3 or flashinfer, is said and is no failure.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

MODULES = (
    "sgl_kernel",
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.scheduler",
    "sglang.srt.layers.attention.flashattention_backend",
    "sglang.srt.layers.attention.flashinfer_backend",
    "sglang.srt.layers.attention.triton_backend",
    "sglang.srt.speculative.eagle_worker_v2",
    "sglang.srt.models.llama_eagle",
    "sglang.srt.models.deepseek_nextn",
    "sglang.srt.models.qwen3_5_mtp",
    "sglang.srt.models.qwen3_5_text",
    "cuda.core",
)
KINDS = Path(__file__).with_name("fa3.txt")
"""Which kernels of FlashAttention 3 the bundle has, in words of fa3.py."""
LENGTHS, WIDTH = (37, 300), 4
"""Texts, and their last tokens that are queries."""


def has_fa3() -> bool:
    """Whether the bundle has the library."""
    spec = find_spec("sgl_kernel")
    return spec is not None and Path(spec.origin or "").with_name("flash_ops.abi3.so").exists()


def norm() -> str:
    """RMS norm, beside torch's."""
    from sgl_kernel import rmsnorm

    x, weight = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((7, 2048), (2048,)))
    return near(rmsnorm(x, weight, 1e-6), torch.nn.functional.rms_norm(x.float(), (2048,), weight.float(), 1e-6))


def paged(page: int, heads: int, kv_heads: int, keys: int, values: int, latent: bool) -> str:
    """Causal attention of each text's last tokens over pages, beside torch's in float32.

    With `latent` a row holds the value and, behind it, what of the key is rotary, as MLA's absorbed attention has it.
    """
    from sgl_kernel.flash_attn import flash_attn_with_kvcache

    rows, longest = len(LENGTHS), -(-max(LENGTHS) // page)
    table = (torch.randperm(rows * longest, device="cuda") + 1).int().view(rows, longest)
    shape = (rows * longest + 1, page, kv_heads)
    key, value = (torch.randn(*shape, n, device="cuda", dtype=torch.bfloat16) for n in (keys, values))
    query = torch.randn(rows * WIDTH, heads, keys, device="cuda", dtype=torch.bfloat16)
    wide = torch.randn(rows * WIDTH, heads, values, device="cuda", dtype=torch.bfloat16) if latent else None
    scale = (keys + values if latent else keys) ** -0.5
    starts = torch.arange(rows + 1, device="cuda", dtype=torch.int32) * WIDTH
    lengths = torch.tensor(LENGTHS, device="cuda", dtype=torch.int32)
    attended = flash_attn_with_kvcache(
        query, key, value, qv=wide, page_table=table, cache_seqlens=lengths, cu_seqlens_q=starts, max_seqlen_q=WIDTH,
        softmax_scale=scale, causal=True,
    )  # fmt: skip
    expected = []
    for row, length in enumerate(LENGTHS):
        pages = table[row].long()
        k, v = (tensor[pages].flatten(0, 1)[:length].float() for tensor in (key, value))
        part = slice(row * WIDTH, (row + 1) * WIDTH)
        q, k = (torch.cat((query[part], wide[part]), -1), torch.cat((k, v), -1)) if latent else (query[part], k)
        expected.append(attend(q.float(), k, v, scale))
    return near(attended, torch.cat(expected))


def ragged() -> str:
    """MLA's prefill: keys wider than values, no pages."""
    from sgl_kernel.flash_attn import flash_attn_varlen_func

    length = LENGTHS[-1]
    q, k, v = (torch.randn(length, 4, n, device="cuda", dtype=torch.bfloat16) for n in (192, 192, 128))
    starts = torch.tensor([0, length], device="cuda", dtype=torch.int32)
    attended = flash_attn_varlen_func(q, k, v, starts, starts, length, length, softmax_scale=192**-0.5, causal=True)
    return near(attended, attend(q.float(), k.float(), v.float(), 192**-0.5))


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal attention of a text's last tokens, grouped heads spread out."""
    spread = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(spread, 1).transpose(0, 1) for tensor in (key, value))
    scores = query.transpose(0, 1) @ key.transpose(1, 2) * scale
    width, length = scores.shape[1:]
    seen = torch.ones(width, length, dtype=torch.bool, device=scores.device).tril(length - width)
    return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value).transpose(0, 1)


def near(actual: Tensor, expected: Tensor) -> str:
    """The relative distance, which is that of bf16."""
    distance = float((actual.float() - expected).norm() / expected.norm())
    if not distance < 1e-2:
        raise RuntimeError(f"relative distance {distance}")
    return f"relative distance {distance:.1e}"


def kernels() -> dict[str, Callable[[], str]]:
    """Calls by name, of what is here."""
    called: dict[str, Callable[[], str]] = {"norm": norm}
    if not has_fa3():
        print("FlashAttention 3: not in this bundle")
        return called
    kinds = KINDS.read_text().split() if KINDS.exists() else ["64", "128", "256", "mla"]  # of an older bundle all
    for page in (1, 16):
        for width in (int(kind) for kind in kinds if kind.isdecimal()):
            called[f"fa3, heads of {width}, pages of {page}"] = lambda p=page, w=width: paged(p, 8, 2, w, w, False)
        if "mla" in kinds:
            called[f"fa3, latent rows, pages of {page}"] = lambda p=page: paged(p, 16, 1, 64, 512, True)
    return called | ({"fa3, latent prefill": ragged} if "mla" in kinds else {})


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
    flashinfer = ["flashinfer.sampling", "flashinfer.decode"] if find_spec("flashinfer") else []
    print("flashinfer:", "here" if flashinfer else "not in this bundle")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    modules = [*MODULES, *flashinfer]
    good = [tried(name, lambda name=name: importlib.import_module(name) and "imported") for name in modules]
    good += [tried(name, call) for name, call in kernels().items()]
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
