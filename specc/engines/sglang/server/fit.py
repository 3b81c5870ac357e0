"""Whether a program is the one that a server's arguments and models describe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.runtime_context import (
    get_disagg,
    get_exec,
    get_parallel,
    get_schedule,
    get_spec,
)

from ..._drawn import draws_drafts, weighs
from ..._shapes import largest
from .. import seam
from ..parts import heads, routed, shards, states
from ..parts.runners import runners_of, scored_tokens
from ..served import KindOfDraft, Server, refusals
from ..windows import first_pool
from .facts import facts
from .simulate import simulating


def misfits(plans: Mapping[Any, Any], worker: Any) -> list[str]:
    """What is in the way of running a program as the decode step of a worker of SGLang; nothing if it fits.

    `plans` are the program's by shape, the deepest first, `worker` is one of SGLang's with its pools and attention
    backends in place. The server itself has of everything what the shapes have most of, so that its memory holds all.
    """
    server, plan = facts(worker), next(iter(plans.values()))
    if worker.kind.own_branches:
        server = replace(server, topk=max(shape.topk for shape in plans))
    budget, draws = any(shape.budget is not None for shape in plans), draws_drafts(plan)
    server = replace(server, budget=budget, draws=draws)
    refused = [str(refusal) for refusal in refusals(server)]
    several = [f"several shapes are not served with {what}" for what in server.single] if len(plans) > 1 else ()
    differs = (
        *_arguments(plans, worker.kind, server.candidates),
        *several,
        *_sampling(plan),
        *_drawn(plan, worker),
        *_models(plan, worker),
        *_shards(plan, worker, server),
        *_simulated(plans),
        *states.misfits(plans, worker),
    )
    needed = [seam.HANDOVER] if get_disagg().disaggregation_mode == "decode" else []
    needed += [seam.LOCKSTEP] if server.groups > 1 else []
    recurrent = server.target is not None and bool(server.target.state)
    needed += [seam.STATES] if recurrent else []
    needed += [seam.NGRAMS] if states.looks_up(worker) else []
    needed += [seam.RECORDS] if recurrent and get_exec().mamba.enable_linear_replayssm_spec else []
    needed += [seam.WEIGHED] if server.weighs and worker.kind.has_steps else []
    needed += [seam.ADAPTIVE] if server.candidates else []
    refused += [f"this SGLang lacks something for it: {feature}" for feature in needed if not seam.there(feature)]
    return [*refused, *differs, *routed.misfits(plans), *_memory(plans, worker, server)]


def _arguments(plans: Mapping[Any, Any], kind: KindOfDraft, candidates: Sequence[int]) -> Iterator[str]:
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
    if kind.own_branches and kind.shaped_by[1]:  # SGLang's tree has as many branches as its texts have, up to a most
        asked["topk"] = topk, min(topk, spec.speculative_eagle_topk)
    elif kind.own_branches:
        del asked["topk"]
    if candidates:  # a server of these has steps of all of them, and whatever it was started with is one
        asked["num_steps"] = _listed(shape.num_steps for shape in plans), _listed(candidates)
        asked["num_draft_tokens"] = max(shape.num_nodes for shape in plans), max(candidates) + 1
    if not kind.has_steps:
        del asked["num_steps"]
    for name, (mine, server_value) in asked.items():
        if mine != server_value:
            yield f"{name} is {mine} in the program, {server_value} in the server"
    allocated = get_alloc_reserve_per_decode()
    if plan.kv.reserve > allocated:
        yield f"a step may write {plan.kv.reserve} slots of a request, the server allocates {allocated}"


def _listed(steps: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(steps)))


def _drawn(plan: Any, worker: Any) -> Iterator[str]:
    """SGLang's first draft may be of any token, and the program says what it was drawn from of those in its map."""
    if weighs(plan) and heads.is_named(plan, scored_tokens(worker)):
        yield "drafts that are drawn of tokens in a file are not served: SGLang's own are of all tokens"


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
        vocabulary = config.vocab_size if scored is None else len(scored)
        if role == "draft" and heads.is_named(plan, scored):  # by a file, of as many tokens as the program says
            vocabulary = model.vocab_size
        models = {
            "vocab_size": vocabulary,
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
    if server.whole is not None and plan.ranks > 1:
        yield f"logits that are sharded are not served {server.whole}"
        return
    if server.headless is not None and plan.computes_head:
        yield f"a head that a program computes is not served {server.headless}"
        return
    if server.whole is not None and not plan.computes_head:
        return
    runners = runners_of(worker)
    yield from shards.misfits(plan, runners, get_parallel().tp_size)
    yield from heads.misfits(plan, runners, scored_tokens(worker), get_parallel().tp_size)
    if plan.ranks > 1 and simulating():
        yield "SGLANG_SIMULATE_ACC_LEN changes whole rows of logits, and those of the program are sharded"


def _simulated(plans: Mapping[Any, Any]) -> Iterator[str]:
    if simulating() and any(shape.is_tree and shape.budget is not None for shape in plans):
        yield "SGLANG_SIMULATE_ACC_LEN says a path of all nodes of a tree, and the program has not a row for each"


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
