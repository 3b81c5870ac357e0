"""What SGLang makes of command lines: `.sglang/bin/python tests/sglang/resolve.py JOB.json OUT.json`.

A job is a list of `{"words": [...], "gpu": "sm_90", "memory_gib": 80}`. Of each the answer has `server`: backends, page
and shape by SGLang's own resolution of arguments, to which the machine is said to have that GPU; and `refusals`: what
the adapter finds on a worker whose model configurations, pools and windows SGLang has chosen, without weights.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("SGLANG_USE_CPU_ENGINE", None)

import torch
from said_machine import machine
from sglang.cli.serve import _normalize_positional_model_path
from sglang.srt.arg_groups.overrides import (
    attention_backends_of,
    max_speculative_num_draft_tokens,
    resolved_view,
)
from sglang.srt.configs.model_config import ModelConfig, is_deepseek_dsa, is_deepseek_v4
from sglang.srt.disaggregation.decode import DecodeReqToTokenPool
from sglang.srt.layers.attention import attention_registry as registry
from sglang.srt.layers.attention.qsa.config import is_qwen_qsa, parse_qsa_profile
from sglang.srt.mem_cache import kv_cache_configurator as pools
from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool
from sglang.srt.model_executor import model_runner
from sglang.srt.model_executor.model_runner_components import attention_backend_setup as setup
from sglang.srt.model_executor.model_runner_components.load_model_utils import resolve_sliding_window_size
from sglang.srt.models.registry import ModelRegistry
from sglang.srt.runtime_context import get_spec, publish
from sglang.srt.server_args import prepare_server_args
from sglang.srt.speculative.adaptive_spec_params import resolve_candidate_steps_from_config
from sglang.srt.speculative.dflash_utils import is_nemotron_35_draft_config, parse_dflash_draft_config
from sglang.srt.speculative.draft_utils import DraftBackendFactory
from sglang.srt.speculative.draft_worker_common import resolve_draft_worker_attention_backend
from sglang.srt.speculative.dspark_components.dspark_config import (
    DSV4_DRAFT_ATTENTION_BACKEND,
    draft_is_deepseek_v4,
)

from specc.engines.sglang.kinds import kind_of
from specc.engines.sglang.parts.runners import runners_of
from specc.engines.sglang.served import refusals
from specc.engines.sglang.server import facts as server_facts


def server(arguments: Any) -> dict[str, Any]:
    """Backends, page, shape, draft and graphs of resolved arguments."""
    view = resolved_view(arguments)
    prefill, decode = attention_backends_of(view)
    of_blocks = view.speculative_algorithm == "DSPARK" and draft_is_deepseek_v4()
    sizes = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    decode_graphs = view.cuda_graph_config.decode
    shape, candidates = [getattr(view, name) for name in sizes], list[int]()
    if view.speculative_adaptive:  # memory is that of the most steps
        candidates = resolve_candidate_steps_from_config(view.speculative_adaptive_config)
        shape = [max(candidates), shape[1], max_speculative_num_draft_tokens(arguments)]
    return {
        "prefill": prefill,
        "decode": decode,
        "draft": DSV4_DRAFT_ATTENTION_BACKEND if of_blocks else view.speculative_draft_attention_backend,
        "page_size": view.page_size,
        "shape": shape,
        "candidates": candidates,
        "algorithm": view.speculative_algorithm,
        "draft_path": view.speculative_draft_model_path,
        "max_requests": view.max_running_requests // view.attn_dp_size,  # of a group, as its runner divides
        "on_their_way": view.disaggregation_decode_extra_slots or 0,
        "captured": decode_graphs.bs,
        "dtype": view.dtype,
    }


class Chosen:
    """What SGLang's code chooses a pool with: its own dispatch, whose builders hand over the class alone."""

    def __init__(self, config: ModelConfig, *, draft: bool) -> None:
        self._settings = {
            "model_config": config,
            "mambaish_config": server_facts.mambaish_config(config),
            "is_hybrid_swa": config.is_hybrid_swa,
            "use_mla_backend": config.attention_arch == model_runner.AttentionArch.MLA,
            "kv_cache_dtype": torch.bfloat16,
            "kv_cache_dtype_str": "auto",
            "is_draft_worker": draft,
            "layer_info": SimpleNamespace(num_effective_layers=1),
        }

    def __getattr__(self, name: str) -> Any:
        if name in self._settings:
            return self._settings[name]
        member = getattr(pools.KVCacheConfigurator, name)
        if not name.startswith("_build_") or name in ("_build_token_to_kv_pool", "_build_req_to_token_pool"):
            return member.__get__(self)
        if name in ("_build_mtp_kv_shard_pool", "_build_mha_quant_method"):
            return lambda **_: None
        return lambda **given: self._class_of(name, given)

    def _class_of(self, builder: str, given: dict[str, Any]) -> type:
        kind = builder.removeprefix("_build_").removesuffix("_kv_pool").removesuffix("_req_pool")
        if kind in ("mha", "mla", "dsa"):
            return given[f"{kind}_pool_class"]
        config = self.model_config.hf_config
        named = {
            "default": pools.ReqToTokenPool,
            "decode": DecodeReqToTokenPool,
            "hybrid": pools.HybridReqToTokenPool,
            "hybrid_swa": pools.SWAKVPool,
            "hybrid_mla_swa": pools.SWAKVPool,
            "hybrid_linear": QSATokenToKVPool if is_qwen_qsa(config) else pools.HybridLinearKVPool,
            "dsv4": pools.DeepSeekV4TokenToKVPool,
        }
        return named.get(kind) or type(f"that of {config.architectures[0]}", (), {})

    def pool(self) -> Any:
        """A pool of keys and values, without any."""
        config = self.model_config.hf_config
        sizes = SimpleNamespace(**dict.fromkeys(pools._PoolSizes.__annotations__))
        chosen = self._build_token_to_kv_pool(
            sizes=sizes,
            is_dsa_model=is_deepseek_dsa(config),
            is_dsv4_model=is_deepseek_v4(config),
            req_to_token_pool=SimpleNamespace(req_to_token=torch.empty(1, 1)),
        )
        pool = object.__new__(chosen)
        kind = pools.MLATokenToKVPool if self.use_mla_backend else pools.MHATokenToKVPool
        if chosen is pools.SWAKVPool:
            pool.full_kv_pool, pool.swa_kv_pool = object.__new__(kind), object.__new__(kind)
            pool.full_layer_nums, pool.full_to_swa_index_mapping = len(self.model_config.full_attention_layer_ids), None
        if chosen is pools.DeepSeekV4TokenToKVPool:
            pool.present_ratios = sorted({ratio for ratio in config.compress_ratios if ratio})
        if issubclass(chosen, pools.HybridLinearKVPool):
            pool.full_kv_pool = object.__new__(kind)
            pool.full_kv_pool.quant_method, pool.full_kv_pool.dtype = None, torch.bfloat16
        return pool

    def requests(self) -> Any:
        """A pool of requests, without any."""
        return object.__new__(self._build_req_to_token_pool(max_num_reqs=1))


def window(config: ModelConfig) -> int | None:
    """The sliding window that SGLang's model has, whose class is asked without making a model."""
    model, _ = ModelRegistry.resolve_model_cls(config.hf_config.architectures)
    made = object.__new__(model)
    inner = object.__new__(model)
    for layer, of in ((made, config.hf_config), (inner, config.hf_text_config)):
        object.__setattr__(layer, "config", of)
        object.__setattr__(layer, "_draft_window_size", get_spec().speculative_draft_window_size)
    text = SimpleNamespace(get_attention_sliding_window_size=lambda: config.hf_text_config.sliding_window - 1)
    object.__setattr__(made, "language_model", text)
    return resolve_sliding_window_size(made, config)


LAYERS = "sglang.srt.layers.attention"
FLASH = "FlashAttentionBackend"
CLASSES = {
    "fa3": FLASH,
    "fa4": FLASH,
    "dsa": "DeepseekSparseAttnBackend",
    "dsv4": "DeepseekV4AttnBackend",
    "flashinfer": "FlashInferAttnBackend",
    "triton": "TritonAttnBackend",
    "trtllm_mha": "TRTLLMHAAttnBackend",
    "trtllm_mla": "TRTLLMMLABackend",
}
"""Attention backend -> SGLang's class of it."""


def backend(name: str, *, mla: bool) -> Any:
    """An attention backend that is none, of a class that is called like SGLang's."""
    named = "FlashInferMLAAttnBackend" if mla and name == "flashinfer" else CLASSES[name]
    return type(named, (), {"fa_impl_ver": int(name[2:]) if named == FLASH else None, "needs_cpu_seq_lens": False})()


def around_states(made: Any, whole: Any) -> Any:
    """What SGLang puts around a backend for layers with a recurrent state as well; it alone for a model without."""
    if server_facts.mambaish_config(made.model_config) is None:
        return whole

    def hold(hybrid: Any, full: Any, linear: Any, _: Any) -> None:
        hybrid.full_attn_backend, hybrid.linear_attn_backend = full, linear

    linear = f"{LAYERS}.linear"
    empty = {
        f"{linear}.gdn_backend": "GDNAttnBackend",
        f"{linear}.kda_backend": "KDAAttnBackend",
        f"{linear}.short_conv_backend": "ShortConvAttnBackend",
        f"{LAYERS}.hybrid_linear_attn_backend": "Mamba2AttnBackend",
        f"{LAYERS}.qwen_sparse_attn_backend": "QwenSparseAttnBackend",
    }
    with ExitStack() as patched:
        for place, kind in empty.items():
            patched.enter_context(patch(f"{place}.{kind}.__init__", lambda *_: None))
        for kind in ("HybridLinearAttnBackend", "ShortConvHybridAttnBackend"):
            patched.enter_context(patch(f"{LAYERS}.hybrid_linear_attn_backend.{kind}.__init__", hold))
        for name in ("gdn_backend.flashinfer_gdn_prefill_default", "kda_backend.flashinfer_kda_prefill_default"):
            patched.enter_context(patch(f"{linear}.{name}", lambda _: None))
        patched.enter_context(patch(f"{linear}.utils.resolve_linear_attn_backends", lambda **_: None))
        patched.enter_context(patch("sglang.kernels.ops.attention.fla.utils.check_environments", lambda: None))
        return registry.attn_backend_wrapper(made, whole)


def target_backend(made: Any) -> Any:
    """The target's attention backend, which SGLang's code puts together of such."""
    setup._build_full_attention_backend_from_str = lambda *, model_runner, backend_str, init_new_workspace: backend(
        backend_str, mla=model_runner.use_mla_backend
    )
    setup.attn_backend_wrapper = around_states
    names = setup.resolve_attention_backend_strs(model_runner=made)
    return setup._build_resolved_backend(model_runner=made, resolved=names, init_new_workspace=False)


class Factory(DraftBackendFactory):
    """SGLang's choice of the draft's attention backends, which makes such."""

    def __init__(self, runner: Any, *sizes: Any) -> None:
        super().__init__(runner, *sizes, qsa_profile=parse_qsa_profile(runner.model_config.hf_config))

    def __getattribute__(self, name: str) -> Any:
        kind = re.fullmatch(r"_create_(\w+)_(decode|prefill)_backend", name)
        if kind is None or kind[1] == "qwen_qsa":
            return super().__getattribute__(name)
        runner, steps = self.draft_model_runner, self.speculative_num_steps

        def create() -> tuple[str, Any]:
            make = partial(backend, kind[1], mla=runner.use_mla_backend)
            several = SimpleNamespace(attn_backends=[make() for _ in range(steps - 1)])
            return kind[1], several if kind[2] == "decode" else make()

        return create


def named(config: ModelConfig) -> type[SimpleNamespace]:
    """Return a stand-in for a model without weights, under the name of SGLang's class."""
    return type(config.hf_config.architectures[0], (SimpleNamespace,), {})


def of_blocks(config: ModelConfig) -> dict[str, Any]:
    """What SGLang reads of a draft that fills in blocks, whose Markov head has the name of SGLang's class."""
    said = parse_dflash_draft_config(draft_hf_config=config.hf_config)
    head = "VanillaMarkov" if getattr(config.hf_config, "markov_head_type", "vanilla") == "vanilla" else "Another"
    return {
        "get_input_embeddings": lambda: None,
        "projector_type": said.projector_type,
        "candidate_selector": said.selector_rank or None,
        "is_nemotron_35_draft": is_nemotron_35_draft_config(config.hf_config),
        "markov_head": type(head, (), {})(),
        "confidence_head": None,
    }


def runner(arguments: Any, path: str, *, draft: bool) -> Any:
    """A runner with what `server.facts` reads."""
    config = ModelConfig.from_server_args(arguments, model_path=path, is_draft_model=draft)
    own = model_runner.resolve_draft_attention_backend(draft_attention_backend=None, is_draft_worker=draft)
    return SimpleNamespace(
        model_config=config,
        sliding_window_size=window(config),
        token_to_kv_pool=Chosen(config, draft=draft).pool(),
        kv_index_translator=SimpleNamespace(is_translating=False),
        model=named(config)(modules=lambda: (), **of_blocks(config)),
        canary_manager=None,
        kv_cache_dtype=config.dtype,
        req_to_token_pool=None,
        is_draft_worker=draft,
        draft_attention_backend=own,
        use_mla_backend=config.attention_arch == model_runner.AttentionArch.MLA,
        device="cuda",
        dtype=config.dtype,
    )


def worker(arguments: Any) -> Any:
    """A worker with what `server.facts` reads."""
    view = resolved_view(arguments)
    target = runner(arguments, view.model_path, draft=False)
    target.attn_backend = target_backend(target)
    drafter = None
    if view.speculative_algorithm in ("DFLASH", "DSPARK"):
        draft = runner(arguments, view.speculative_draft_model_path, draft=True)
        own = DSV4_DRAFT_ATTENTION_BACKEND if draft_is_deepseek_v4() else resolve_draft_worker_attention_backend()
        draft.attn_backend = backend(own, mla=False)
        drafter = SimpleNamespace(draft_runner=draft)
    elif view.speculative_algorithm == "FROZEN_KV_MTP":  # a chain is drafted by the runner's own backend
        draft = runner(arguments, view.speculative_draft_model_path, draft=True)
        draft.attn_backend = target_backend(draft)
        context = SimpleNamespace(target_token_to_kv_pool=target.token_to_kv_pool)
        drafter = SimpleNamespace(draft_runner=draft, draft_attn_backend=draft.attn_backend, kv_context=context)
    elif view.speculative_algorithm != "NGRAM":
        draft = runner(arguments, view.speculative_draft_model_path, draft=True)
        factory = Factory(draft, view.speculative_eagle_topk, view.speculative_num_steps)
        steps, extend = factory.create_decode_backend(), factory.create_draft_extend_backend()
        drafter = SimpleNamespace(draft_runner=draft, draft_attn_backend=steps, draft_extend_attn_backend=extend)
        if view.enable_multi_layer_eagle:
            drafter = SimpleNamespace(
                draft_runner=draft, draft_runner_list=[draft], draft_extend_attn_backend_list=[extend]
            )
    kind = kind_of("MULTI_LAYER_EAGLE" if hasattr(drafter, "draft_runner_list") else view.speculative_algorithm)
    if kind is not None and "kind" in kind.members:  # which the draft decides
        kind = kind.members["kind"].fget(SimpleNamespace(draft_model=drafter.draft_runner.model))
    return SimpleNamespace(
        kind=kind,
        target_worker=SimpleNamespace(model_runner=target),
        draft_worker=drafter,
        req_to_token_pool=Chosen(target.model_config, draft=False).requests(),
        server_args=arguments,
    )


def answer(words: list[str], gpu: str, memory_gib: int) -> dict[str, Any]:
    """Of one command line."""
    with machine(gpu, memory_gib):
        own, _ = _normalize_positional_model_path(words)
        arguments = prepare_server_args([*own, "--device", "cuda"])
        arguments.resolve_once()
        result = {"server": server(arguments)}
        publish(arguments, role="scheduler")
        made = worker(arguments)
        if result["server"]["algorithm"] == "DSPARK" and result["server"]["draft"] is None:
            result["server"]["draft"] = resolve_draft_worker_attention_backend()  # which no argument says
        if made.kind.blocks or made.kind.each_step:  # which the draft decides, or the target
            result["server"]["algorithm"] = made.kind.algorithms[0]
        facts = server_facts.facts(made)
    runners = runners_of(made)
    return result | {
        "refusals": [[refusal.about, refusal.what] for refusal in refusals(facts)],
        "dtypes": {role: str(of_role.dtype).removeprefix("torch.") for role, of_role in runners.items()},
    }


def main() -> None:
    """Read a job, answer it, write what came out; what SGLang refuses has its message instead."""
    job, out = (Path(name) for name in sys.argv[1:])
    answers: list[dict[str, Any]] = []
    for case in json.loads(job.read_text()):
        try:
            answers.append(answer(**case))
        except (Exception, SystemExit) as error:  # SGLang raises anything, and its parser ends the process
            if os.environ.get("RAISE"):
                raise
            answers.append({"error": f"{type(error).__name__}: {error}"})
    out.write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
