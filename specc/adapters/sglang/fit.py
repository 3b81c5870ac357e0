"""Whether a program is the one that a server's arguments and models describe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang.srt.managers import overlap_utils
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
from sglang.srt.runtime_context import get_disagg, get_observability, get_parallel, get_schedule, get_spec
from sglang.srt.state_capturer.indexer_topk import get_global_indexer_capturer
from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer

from . import shards
from .attention import roles_of
from .forwards import scored_tokens
from .simulate import simulating

SCATTERED = ("enable_attn_tp_input_scattered", "enable_layernorm_sp")
"""Arguments under which a rank does not have all rows that a forward hands over."""
BACKENDS = {"triton": "full", "intel_amx": "qlen", "fa3": "slots"}
"""Attention backends that are served, by SGLang's names, and the mode in which each reads the mask of a tree."""


def misfits(plan: Any, worker: Any) -> list[str]:
    """What is in the way of running the program of `plan` as the decode step of a worker of SGLang; nothing if it fits.

    `plan` is the program's, `worker` an EAGLEWorkerV2 with its pools and attention backends in place.
    """
    served = (*_unserved(worker), *_arguments(plan), *_sampling(plan))
    return [*served, *_models(plan, worker), *_shards(plan, worker), *_memory(plan, worker)]


def _unserved(worker: Any) -> Iterator[str]:
    """What no program does in SGLang."""
    spec, parallel = get_spec(), get_parallel()
    for name in ("pp_size", "dp_size", "attn_dp_size", "attn_cp_size", "dcp_size", "moe_dp_size", "moe_ep_size"):
        if getattr(parallel, name) != 1:
            yield f"{name} is {getattr(parallel, name)}: served are ranks that share out every layer"
    if parallel.tp_size > 1 and spec.speculative_token_map is not None and spec.speculative_algorithm != "EAGLE3":
        yield "speculative_token_map: SGLang takes its rows from a head of which each rank has a part"
    if any(getattr(worker.server_args, name) for name in SCATTERED):
        yield f"{' or '.join(SCATTERED)}: ranks have hidden states of some tokens only"
    if get_disagg().disaggregation_mode != "null":
        yield f"disaggregation_mode is {get_disagg().disaggregation_mode}"
    if spec.speculative_adaptive:
        yield "speculative_adaptive changes the number of steps"
    if spec.speculative_use_rejection_sampling:
        yield "speculative_use_rejection_sampling"
    backends = set(roles_of(worker).named().values())
    if len(backends) != 1 or not backends <= set(BACKENDS):
        yield f"attention is that of {', '.join(sorted(backends))}; served are {', '.join(sorted(BACKENDS))}"
    for role, runner in _runners(worker).items():
        if runner.model_config.model_is_mrope:
            yield f"the {role} has multimodal positions (mrope)"
        if runner.sliding_window_size:
            yield f"the {role} has layers with a sliding window"
        if runner.kv_index_translator.is_translating:
            yield f"the {role} keeps its keys and values in a unified pool"
        pool, latent = type(runner.token_to_kv_pool), backends == {"fa3"} and spec.speculative_eagle_topk == 1
        if pool is not MHATokenToKVPool and not (pool is MLATokenToKVPool and latent):
            yield f"the {role} keeps its keys and values in a {pool.__name__}"
    if type(worker.req_to_token_pool) is not ReqToTokenPool:
        yield f"requests are kept in a {type(worker.req_to_token_pool).__name__}"
    if worker.server_args.enable_lora:
        yield "LoRA"
    if get_observability().forward_hooks or any(one.canary_manager for one in _runners(worker).values()):
        yield "forward hooks, or a canary of the KV pool"
    if get_global_experts_capturer() is not None or get_global_indexer_capturer() is not None:
        yield "routed experts or the indexer's top-k are returned: SGLang notes them for every token, by KV slot"
    if overlap_utils._DEBUG_ASSERT:
        yield "SGLANG_IS_IN_CI, under which SGLang overwrites the state that the program shares with it"


def _arguments(plan: Any) -> Iterator[str]:
    spec = get_spec()
    asked = {
        "algorithm": (plan.algorithm, spec.speculative_algorithm),
        "topk": (plan.size("K"), spec.speculative_eagle_topk),
        "num_steps": (plan.size("S"), spec.speculative_num_steps),
        "num_draft_tokens": (plan.size("N"), spec.speculative_num_draft_tokens),
        "page_size": (plan.kv.page_size, get_schedule().page_size),
        "draft_positions": (plan.kv.draft_positions, "shifted"),
    }
    for name, (mine, theirs) in asked.items():
        if mine != theirs:
            yield f"{name} is {mine} in the program, {theirs} in the server"
    allocated = get_alloc_reserve_per_decode()
    if plan.kv.reserve > allocated:
        yield f"a step may write {plan.kv.reserve} slots of a request, the server allocates {allocated}"


def _sampling(plan: Any) -> Iterator[str]:
    """Thresholds below 1 make SGLang accept more than its target would sample; a program that is greedy leaves that."""
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        if plan.samples and (threshold := getattr(get_spec(), name)) != 1:
            yield f"{name} is {threshold}: drafts are accepted as the target samples"


def _models(plan: Any, worker: Any) -> Iterator[str]:
    for role, runner in _runners(worker).items():
        model, config = plan.models[role], runner.model_config
        dtype = str(runner.dtype).removeprefix("torch.")
        scored = scored_tokens(worker) if role == "draft" else None
        found = {
            "vocab_size": config.vocab_size if scored is None else len(scored),
            "hidden_size": config.hidden_size,
            "dtype": {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}.get(dtype, dtype),
            "logits_dtype": "f32",
        }
        for name, theirs in found.items():
            if (mine := getattr(model, name)) != theirs:
                yield f"{name} of the {role} is {mine} in the program, {theirs} in the server"


def _shards(plan: Any, worker: Any) -> Iterator[str]:
    yield from shards.misfits(plan, _runners(worker), get_parallel().tp_size)
    if plan.ranks > 1 and simulating():
        yield "SGLANG_SIMULATE_ACC_LEN changes whole rows of logits, and those of the program are sharded"


def _memory(plan: Any, worker: Any) -> Iterator[str]:
    rows = len(worker.req_to_token_pool.req_to_token)
    if rows > plan.size("P"):
        yield f"the server keeps {rows - 1} requests, the program {plan.size('P') - 1} (max_requests)"
    for role, runner in _runners(worker).items():
        if not (pool := plan.kv_pools[role]).bound:
            continue
        row = runner.token_to_kv_pool.k_buffer[0][0]
        if pool.row_bytes != (theirs := row.numel() * row.element_size()):
            yield f"a slot of a layer of the {role} has {pool.row_bytes} bytes in the program, {theirs} on a rank"
    target = worker.target_worker.model_runner
    if target.decode_cuda_graph_runner is not None and target.device == "cuda":
        most = max(target.decode_cuda_graph_runner.capture_bs)
        if plan.buckets[-1] > most:
            yield f"the largest bucket is {plan.buckets[-1]}, the server captures graphs of up to {most} requests"
    # A step may start before the two that end a text are known to.
    length, longest = target.model_config.context_len + 2 * plan.size("A"), plan.kv.longest
    if longest is not None and length > longest:
        yield f"texts of the server, and two steps, have up to {length} tokens, context_length is {longest}"
    mode, backend = plan.serving.mask_mode, BACKENDS.get(roles_of(worker).named()["verify"])
    if mode is not None and backend is not None and mode != backend:
        yield f"mask is {mode} in the program, {backend} in the server's attention backend"


def _runners(worker: Any) -> dict[str, Any]:
    return {"target": worker.target_worker.model_runner, "draft": worker.draft_worker.draft_runner}
