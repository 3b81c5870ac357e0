"""What vLLM takes where a command line says nothing: tables of its own choices on GPUs that it is said to have.

Nothing is run on a GPU. Libraries for GPUs that a CPU's environment lacks are stand-ins, whose functions say yes: which
GPUs, types and layouts a backend has is in vLLM's own files.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

sys.path[:0] = [str(Path(__file__).parent / folder) for folder in ("stand_ins", "resolvable")]
os.environ["VLLM_HAS_FLASHINFER_CUBIN"] = (
    "1"  # as on a machine with GPUs; otherwise FlashInfer's are asked for by network
)

import answer
import torch

GpuMachine, Library = answer.GpuMachine, answer.machine.Library
PACKAGES = (
    "flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.utils", "flashinfer.mla", "vllm._flashmla_C",
    "vllm._flashmla_extension_C", "vllm.vllm_flash_attn.cute", "vllm.vllm_flash_attn.cute.interface",
)  # fmt: skip


class Said(type):
    """A class of a package for GPUs: its functions say yes."""

    def __getattr__(cls, name: str) -> Any:
        """Return one."""
        return getattr(sys.modules[PACKAGES[0]], name.lower())


class Package(Library):
    """A package for GPUs: its functions say yes."""

    def __getattr__(self, name: str) -> Any:
        """Return a class of this name, or else a function."""
        return Said(name, (), {}) if name[:1].isupper() else super().__getattr__(name)


for name in PACKAGES:
    sys.modules[name] = Package(name)
    sys.modules[name].__spec__ = ModuleSpec(name, None)
for name in (*PACKAGES, *(f"vllm.{library}" for library in answer.machine.LIBRARIES)):
    above, _, short = name.rpartition(".")
    if isinstance(sys.modules.get(above), Library):
        vars(sys.modules[above])[short] = sys.modules[name]
GpuMachine.num_compute_units = classmethod(lambda cls, device_id=0: 1)
empty = torch.empty
torch.empty = lambda *size, pin_memory=False, **how: empty(
    *size, **how | ({"device": "meta"} if "cuda" in str(how) else {})
)

from vllm.config import AttentionConfig, CacheConfig, VllmConfig, set_current_vllm_config
from vllm.engine import arg_utils
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.model_executor.models.config import MODELS_CONFIG_MAP
from vllm.platforms.cpu import CpuPlatform
from vllm.usage.usage_lib import UsageContext
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "mha": {"head_size": 128},
    "sinks": {"head_size": 64, "has_sink": True},
    "mla": {"head_size": 576, "use_mla": True},
    "dsa": {"head_size": 576, "use_mla": True, "use_sparse": True},
}
"""Those of layers: of the KV cache, and whether the softmax has sinks. `check.defaults` has the same names."""
DTYPES = ("bfloat16", "float16", "float32")
SMALL, ADAPTIVE = "fp8", "adaptive"
"""A KV cache of 8 bits, where any other has the server's type; and a server that verifies adaptively."""
HEADS = 128
"""Of a rank."""
MODELS = {
    (False, False): "Llama-3.1-8B-Instruct", (True, False): "DeepSeek-V3", (True, True): "served/DeepSeek-V3.2",
    (False, True): "Llama-3.1-8B-Instruct",
}  # fmt: skip
"""A published model of each layout, by whether rows are latent and whether attention reads some of them alone."""
PUBLISHED = Path(__file__).resolve().parents[1] / "published"
LAYER = SimpleNamespace(
    qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, kv_lora_rank=512, q_lora_rank=1536,
    prefill_backend=SimpleNamespace(clone=lambda: SimpleNamespace(prepare_metadata=None)),
)  # fmt: skip
"""Of latent rows, as DeepSeek-V3 has it."""
BLOCK = CacheConfig.DEFAULT_BLOCK_SIZE
SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
OWN_LAYERS = {
    "DeepseekV4For": ("vllm.models.deepseek_v4.nvidia.model", "DSV4"),
    "DeepseekV41For": ("vllm.models.deepseek_v41.nvidia.model", "DSV41"),
}
"""What classes that have attention of their own begin with -> the module that chooses it, how these backends end."""
OTHERS = r"(ROCM|XPU|CPU|AMX|TORCH|NO_ATTENTION|CUSTOM).*|.*_DSV\d+"
"""Backends that no GPU of NVIDIA's has, or that layers of their own alone have."""
ON_CPU = "cpu"
LOOKED_UP = ("-sc.method", "ngram", "-sc.num_speculative_tokens", "3", "-sc.prompt_lookup_max", "3")
UP_TO_GIB = 300
MANY = 1 << 14
CAPABLE = "supports_draft_decode_metadata_update"


def on(arch: str) -> Any:
    """Say that the machine has such GPUs, and return their capability."""
    if GpuMachine.arch != arch:
        for kept in gc.get_objects():  # what vLLM has found of another GPU
            if isinstance(kept, functools._lru_cache_wrapper) and str(kept.__module__).startswith("vllm."):
                kept.cache_clear()
    GpuMachine.arch = arch
    return GpuMachine.get_device_capability()


def server(name: str, arch: str, *words: str) -> VllmConfig:
    """Return the configuration of a server of a published model that looks drafts up."""
    return answer.configured([str(PUBLISHED / name), *LOOKED_UP, *words], arch, 80)


def attention(arch: str, layout: str, *, adaptive: bool = False) -> dict[str, str | None]:
    """Return the attention backend of a layout, by the types of the server and of its KV cache; None for none."""
    capability, answers = on(arch), dict[str, str | None]()
    for dtype in DTYPES:
        for words, cache in ((dtype, "auto"), (f"{dtype} {SMALL}", SMALL)):
            asked = selection(layout, dtype, cache, adaptive=adaptive)
            valid, _ = GpuMachine.get_valid_backends(capability, asked, num_heads=HEADS)
            answers[words] = min(valid, key=lambda one: one.priority).backend.name if valid else None
    return usually(answers)


def selection(layout: str, dtype: str, cache: str, *, adaptive: bool = False) -> AttentionSelectorConfig:
    """Return what backends are asked of a layout."""
    return AttentionSelectorConfig(
        dtype=getattr(torch, dtype), kv_cache_dtype=cache, block_size=None, use_adaptive_verification=adaptive,
        **LAYOUTS[layout],
    )  # fmt: skip


def own_layers(begin: str, backend: AttentionBackendEnum | None = None) -> Any:
    """Return the class of attention of models that have their own, where a backend is written or none."""
    config = VllmConfig(attention_config=AttentionConfig(backend=backend))
    return importlib.import_module(OWN_LAYERS[begin][0])._select_dsv4_attn_cls(config)


def backends(arch: str) -> dict[str, dict[str, Any]]:
    """Return every backend that can be had on a GPU: tokens of a block, and whether drafts can be a graph.

    And whether it reads on the device how many drafts of each request a step verifies, as adaptive verification asks.
    """
    capability, found = on(arch), dict[str, dict[str, Any]]()
    of_models = {name: server(name, arch) for name in {*MODELS.values()}}
    configs = {kind: of_models[name] for kind, name in MODELS.items()}
    for backend in AttentionBackendEnum:
        if re.fullmatch(OTHERS, backend.name):
            continue
        try:
            of = backend.get_class()
        except ImportError:  # of packages that come with no vLLM
            continue
        if of.supports_compute_capability(capability):
            config = configs[of.is_mla(), of.is_sparse()]
            with set_current_vllm_config(config):
                size = of.get_preferred_block_size(BLOCK)
                found[backend.name] = backend_row(of, size, captured(of, config))
    for begin, (_, ends) in OWN_LAYERS.items():
        for backend in AttentionBackendEnum:
            if backend.name.endswith(f"_{ends}") and not backend.name.startswith("ROCM"):
                with set_current_vllm_config(configs[True, True]):
                    of = own_layers(begin, backend)
                    size = of.backend_cls.get_preferred_block_size(BLOCK)
                    # Layers of drafts have the window alone.
                    alone = captured(of.swa_backend_cls, configs[True, True])
                    found[backend.name] = backend_row(of.backend_cls, size, alone)
    return found


def backend_row(of: Any, block: int, drafts: bool) -> dict[str, Any]:
    """Return what is kept of a backend."""
    return {"block": block, "captured": drafts, ADAPTIVE: of.supports_device_cpu_query_lens_mismatch()}


def captured(backend: Any, config: VllmConfig) -> bool:
    """Return whether a backend makes the metadata of decode steps on the device, by what its builder says when made.

    RuntimeError where a builder says it later than it can be made without a GPU.
    """
    builder, latent = backend.get_builder_cls(), backend.is_mla()
    sizes = {"block_size": 64, "num_kv_heads": 1 if latent else 8, "dtype": torch.bfloat16}
    spec = MLAAttentionSpec(head_size=576, **sizes) if latent else FullAttentionSpec(head_size=128, **sizes)
    config.compilation_config.static_forward_context["layer"] = LAYER
    made, ended = object.__new__(builder), None
    try:
        made.__init__(spec, ["layer"], config, torch.device("cpu"))
    except Exception as error:  # what is behind it needs a GPU
        ended = error
    inits = [vars(of)["__init__"] for of in builder.__mro__[:-1] if "__init__" in vars(of)]
    says = any(CAPABLE in init.__code__.co_names for init in inits)
    if says and CAPABLE not in vars(made):
        raise RuntimeError(f"{builder.__name__} does not say whether it makes metadata on the device") from ended
    return bool(getattr(made, CAPABLE))


def requests(arch: str) -> dict[str, int]:
    """Return how many requests a server keeps, by GiB of GPU memory, each from so many on."""
    on(arch)
    starts: dict[str, int] = {}
    for memory in range(1, UP_TO_GIB + 1):
        GpuMachine.memory = memory
        most = arg_utils.EngineArgs.get_batch_defaults(1)[1][UsageContext.OPENAI_API_SERVER]
        if [*starts.values()][-1:] != [most]:
            starts[str(memory)] = most
    return starts


def graphs() -> dict[str, int]:
    """Return the tokens of the largest graph by GPU, and by class where that says another."""
    plain = {}
    for arch in ARCHS:
        config = server(MODELS[False, False], arch, "--max-num-seqs", str(MANY), "--max-num-batched-tokens", str(MANY))
        plain[arch] = config.compilation_config.max_cudagraph_capture_size
    said = dict(by_archs("usual", plain))
    config = server(MODELS[False, False], ARCHS[0])
    for name, of in sorted(MODELS_CONFIG_MAP.items()):
        config.compilation_config.max_cudagraph_capture_size = config.compilation_config.cudagraph_capture_sizes = None
        with suppress(Exception):  # a class that reads more than such a model has
            of.verify_and_update_config(config)
        if (most := config.compilation_config.max_cudagraph_capture_size) is not None:
            said[name] = most
    return said


def on_a_cpu() -> dict[str, Any]:
    """Return what a server on CPUs takes: attention, tokens of a block, and how many requests a rank keeps."""
    backend = resolve_obj_by_qualname(CpuPlatform.get_attn_backend_cls(None, selection("mha", "bfloat16", "auto")))
    config = server(MODELS[False, False], ARCHS[0])
    with patch.object(CpuPlatform, "_find_non_ssm_backends", lambda _: [backend]):
        CpuPlatform.update_block_size_for_backend(config)
    with patch.object(arg_utils, "current_platform", CpuPlatform()):
        one, several = (
            arg_utils.EngineArgs.get_batch_defaults(ranks)[1][UsageContext.OPENAI_API_SERVER] for ranks in (1, 8)
        )
    assert several == 8 * one, "each rank has as many"
    return {"name": backend.get_name(), "block": config.cache_config.block_size, "requests": one}


def resolved() -> dict[str, dict[str, Any]]:
    """Return the tables of what vLLM takes by itself."""
    with set_current_vllm_config(VllmConfig()):
        of_layouts = {layout: {arch: attention(arch, layout) for arch in ARCHS} for layout in LAYOUTS}
        for layout in LAYOUTS:
            of_layouts[f"{layout} {ADAPTIVE}"] = {arch: attention(arch, layout, adaptive=True) for arch in ARCHS}
        for begin in OWN_LAYERS:
            of_layouts[begin] = {
                arch: {"usual": own_layers(begin).backend_cls.get_name()} for arch in ARCHS if on(arch)
            }  # fmt: skip
    found = {arch: backends(arch) for arch in ARCHS}
    names = dict.fromkeys(name for of in found.values() for name in of)
    of_backends = {name: {arch: of[name] for arch, of in found.items() if name in of} for name in names}
    cpu = on_a_cpu()
    return {
        "attention": dict(entry for layout, rows in of_layouts.items() for entry in by_archs(layout, rows))
        | {f"mha on {ON_CPU}": {"usual": cpu["name"]}},
        "backends": dict(entry for name, rows in of_backends.items() for entry in by_archs(name, rows))
        | {f"{cpu['name']} on {ON_CPU}": {"block": cpu["block"], "captured": False, ADAPTIVE: False}},
        "blocks": {"usual": BLOCK} | {begin: answer.window_block(begin) for begin in OWN_LAYERS},
        "max_requests": dict(by_archs("usual", {arch: requests(arch) for arch in ARCHS})) | {ON_CPU: cpu["requests"]},
        "largest_graph": graphs(),
        "sampled": {name: ChatCompletionRequest._DEFAULT_SAMPLING_PARAMS.default[name] for name in SAMPLED},
    }


def by_archs(name: str, rows: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the rows of a name, each once, by it and all GPUs that have it."""
    for said in {json.dumps(said): said for said in rows.values()}.values():
        yield f"{name} on {' '.join(arch for arch, other in rows.items() if other == said)}", said


def usually(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer that is given most often, and those to other questions."""
    usual = json.loads(Counter(map(json.dumps, answers.values())).most_common(1)[0][0])
    return {"usual": usual} | {name: answer for name, answer in answers.items() if answer != usual}
