"""Whether a program is the one that a server's arguments and models describe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.managers import overlap_utils
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.runtime_context import (
    get_disagg,
    get_exec,
    get_lora,
    get_observability,
    get_parallel,
    get_schedule,
    get_spec,
)
from sglang.srt.state_capturer.indexer_topk import get_global_indexer_capturer

from ..._shapes import largest
from .. import seam
from ..attention.roles import roles_of
from ..parts import heads, routed, shards
from ..parts.runners import runners_of, scored_tokens
from ..served import CACHES, DATA_PARALLEL, SETTINGS, KindOfDraft, ServedModel, Server, refusals
from ..windows import first_pool, oddity
from .settings import flag
from .simulate import simulating

COMMAND_LINE = {"flashinfer_mla": "flashinfer"}
"""Attention backends that the command line calls by the name of another."""
ROWS = "ReqToTokenPool", "DecodeReqToTokenPool"
"""SGLang's classes of tables of KV slots that are served, the second of a server that decodes what another prefills."""
PARALLEL = ("pp_size", "dp_size", "attn_cp_size", "dcp_size", "moe_dp_size", "moe_dense_tp_size")
"""Arguments by whose names SGLang keeps how many ranks came of them."""


def misfits(plans: Mapping[Any, Any], worker: Any) -> list[str]:
    """What is in the way of running a program as the decode step of a worker of SGLang; nothing if it fits.

    `plans` are the program's by shape, the deepest first, `worker` is one of SGLang's with its pools and attention
    backends in place. The server itself has of everything what the shapes have most of, so that its memory holds all.
    """
    server, plan = facts(worker), next(iter(plans.values()))
    if worker.kind.own_branches:
        server = replace(server, topk=max(shape.topk for shape in plans))
    refused = [str(refusal) for refusal in refusals(server)]
    several = [f"several shapes are not served with {what}" for what in server.single] if len(plans) > 1 else ()
    differs = (
        *_arguments(plans, worker.kind),
        *several,
        *_sampling(plan),
        *_models(plan, worker),
        *_shards(plan, worker, server),
    )
    needed = [seam.HANDOVER] if get_disagg().disaggregation_mode == "decode" else []
    needed += [seam.LOCKSTEP] if server.groups > 1 else []
    refused += [f"this SGLang lacks something for it: {feature}" for feature in needed if not seam.there(feature)]
    return [*refused, *differs, *routed.misfits(plans), *_memory(plans, worker, server)]


def facts(worker: Any) -> Server:
    """The facts of a running server on which it hangs whether programs are served, from SGLang's objects."""
    spec, parallel, runners = get_spec(), get_parallel(), runners_of(worker)
    kind, named = worker.kind, roles_of(worker).named()
    pool, requests = runners["target"].token_to_kv_pool, type(worker.req_to_token_pool).__name__
    target = _facts_of(runners["target"], pool)
    if requests not in ROWS and not target.recurrent:
        target = replace(target, cache=f"beside a {requests}")
    return Server(
        target=target,
        draft=_facts_of(runners["draft"], pool, kind) if "draft" in runners else None,
        kind=kind,
        topk=spec.speculative_eagle_topk,
        attention={role: COMMAND_LINE.get(name, name) for role, name in named.items()},
        device=runners["target"].device,
        ranks=parallel.tp_size,
        groups=parallel.attn_dp_size,
        head_rows=spec.speculative_token_map is not None and kind.token_maps.get(spec.speculative_algorithm, True),
        adapters=bool(get_lora().enable_lora),
        settings=_settings(worker),
    )


def _facts_of(runner: Any, of_target: Any, kind: KindOfDraft | None = None) -> ServedModel:
    """The facts of a model: of the draft, which is of a kind, what such ones may have.

    A pool is of its very class: others that derive from it keep their rows otherwise.
    """
    config, pool = runner.model_config, type(runner.token_to_kv_pool).__name__
    cache = next((layout for layout, name in CACHES.items() if name == pool), pool)
    if cache == "swa":
        cache = oddity(runner.token_to_kv_pool, of_target, module=kind is not None and bool(kind.each_step)) or cache
    layers = (getattr(layer, "sliding_window_size", None) or -1 for layer in runner.model.modules())
    return ServedModel(
        cache=f"a unified {pool}" if runner.kv_index_translator.is_translating else cache,
        chunk=config.is_local_attention_model,
        window=bool(runner.sliding_window_size) or any(type(size) is int and size > 0 for size in layers),
        recurrent=mambaish_config(config) is not None,
        beside="" if kind is None else kind.model_beside(runner.model),
    )


def _settings(worker: Any) -> dict[str, object]:
    """What the server was told, as far as `SETTINGS` has a word on it: by what came of it where SGLang keeps that."""
    parallel, spec, given = get_parallel(), get_spec(), worker.server_args
    names = SETTINGS | DATA_PARALLEL
    settings = {name: getattr(given, name) for name in names if hasattr(given, name)}
    settings |= {name: flag(name) for name in names if name.isupper()}
    settings |= {name: getattr(spec, name) for name in names if hasattr(spec, name)}
    runners = runners_of(worker).values()
    return settings | {
        **{name: getattr(parallel, name) for name in PARALLEL},
        "disaggregation_mode": get_disagg().disaggregation_mode,
        "moe_a2a_backend": get_exec().moe.moe_a2a_backend,
        "speculative_moe_a2a_backend": spec.speculative_moe_a2a_backend or "none",
        "forward_hooks": get_observability().forward_hooks or None,
        "kv_canary": "running" if any(runner.canary_manager for runner in runners) else "none",
        "enable_return_indexer_topk": get_global_indexer_capturer() is not None,
        "SGLANG_IS_IN_CI": bool(overlap_utils._DEBUG_ASSERT),
    }


def _arguments(plans: Mapping[Any, Any], kind: KindOfDraft) -> Iterator[str]:
    spec, plan = get_spec(), next(iter(plans.values()))
    topk = max(shape.topk for shape in plans)
    asked = {
        "algorithm": (plan.runs_as or plan.algorithm, kind.program_of(spec.speculative_algorithm)),
        "topk": (topk, spec.speculative_eagle_topk),
        "num_steps": (max(shape.num_steps for shape in plans), spec.speculative_num_steps),
        "num_draft_tokens": (max(shape.num_nodes for shape in plans), spec.speculative_num_draft_tokens),
        "page_size": (plan.kv.page_size, get_schedule().page_size),
        "draft_positions": (plan.kv.draft_positions, "shifted"),
    }
    if kind.own_branches:  # SGLang's tree has as many branches as its texts have, up to a most
        asked["topk"] = topk, min(topk, spec.speculative_eagle_topk)
    if not kind.has_steps:
        del asked["num_steps"]
    for name, (mine, server_value) in asked.items():
        if mine != server_value:
            yield f"{name} is {mine} in the program, {server_value} in the server"
    allocated = get_alloc_reserve_per_decode()
    if plan.kv.reserve > allocated:
        yield f"a step may write {plan.kv.reserve} slots of a request, the server allocates {allocated}"


def _sampling(plan: Any) -> Iterator[str]:
    """Thresholds below 1 make SGLang accept more than its target would sample; a program that is greedy leaves that."""
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        if plan.samples and (threshold := getattr(get_spec(), name)) != 1:
            yield f"{name} is {threshold}: drafts are accepted as the target samples"


def _models(plan: Any, worker: Any) -> Iterator[str]:
    for role, runner in _runners(plan, worker).items():
        model, config = plan.models[role], runner.model_config
        dtype = str(runner.dtype).removeprefix("torch.")
        scored = scored_tokens(worker) if role == "draft" else None
        models = {
            "vocab_size": config.vocab_size if scored is None else len(scored),
            "hidden_size": config.hidden_size,
            "dtype": {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}.get(dtype, dtype),
            "logits_dtype": "f32",
        }
        for name, server_value in models.items():
            if (mine := getattr(model, name)) != server_value:
                yield f"{name} of the {role} is {mine} in the program, {server_value} in the server"


def _shards(plan: Any, worker: Any, server: Server) -> Iterator[str]:
    if worker.kind.blocks and len(heads.processors_of(runners_of(worker)["target"])) != 1:
        yield "the target has not one logits processor, by which blocks of drafts are scored"
    if server.whole is not None:
        if plan.ranks > 1 or plan.computes_head:
            yield f"logits that are sharded, and a head that a program computes, are not served {server.whole}"
        return
    runners = runners_of(worker)
    yield from shards.misfits(plan, runners, get_parallel().tp_size)
    yield from heads.misfits(plan, runners.get("draft"), get_parallel().tp_size)
    if plan.ranks > 1 and simulating():
        yield "SGLANG_SIMULATE_ACC_LEN changes whole rows of logits, and those of the program are sharded"


def _memory(plans: Mapping[Any, Any], worker: Any, server: Server) -> Iterator[str]:
    rows, plan = len(worker.req_to_token_pool.req_to_token), next(iter(plans.values()))
    if rows > plan.size("P"):
        yield f"the server keeps {rows - 1} requests, the program {plan.size('P') - 1} (max_requests)"
    for role, runner in _runners(plan, worker).items():
        if role not in plan.kv_pools:  # of an assistant
            continue
        pool, moved = plan.kv_pools[role], any(of_shape.kv_pools[role].bound for of_shape in plans.values())
        if moved and pool.row_bytes != (row_bytes := _row_bytes(runner.token_to_kv_pool)):
            yield f"a slot of a layer of the {role} has {pool.row_bytes} bytes in the program, {row_bytes} on a rank"
    target = worker.target_worker.model_runner
    if target.decode_cuda_graph_runner is not None and target.device == "cuda":
        most = max(target.decode_cuda_graph_runner.capture_bs)
        if (rows := largest(plans)) > most:
            yield f"the largest bucket is {rows}, the server captures graphs of up to {most} requests"
    # A step may start before the two that end a text are known to.
    length, longest = target.model_config.context_len + 2 * plan.size("A"), plan.kv.longest  # of the deepest
    if longest is not None and length > longest:
        yield f"texts of the server, and two steps, have up to {length} tokens, context_length is {longest}"
    mode = plan.serving.mask_mode
    if mode is not None and server.mask is not None and mode != server.mask:
        yield f"mask is {mode} in the program, {server.mask} in the server's attention backend"


def _row_bytes(pool: Any) -> int:
    """Bytes of a token in one buffer of a layer: its keys, or its latent row."""
    pool = first_pool(pool)
    row = (pool.k_buffer if hasattr(pool, "k_buffer") else pool.kv_buffer)[0][0]
    return row.numel() * row.element_size()


def _runners(plan: Any, worker: Any) -> dict[str, Any]:
    """The runners of models that a program has as well."""
    return {role: runner for role, runner in runners_of(worker).items() if role in plan.models}
