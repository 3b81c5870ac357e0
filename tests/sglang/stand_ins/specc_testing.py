"""A plugin of SGLang that lets it speculate on any CPU, and shows what tests ask for.

It keeps the CPU's attention backend where there is no AMX, and has experts of other ranks left out there. Environment
variables ask for more: SPECC_TEST_OVERLAP=1 keeps the overlap schedule, SPECC_TEST_NAN=token spoils the target's scores
after that token, SPECC_TEST_PLAN=1 has the host plan attention, SPECC_TEST_PAD=1 fills every step of a program up to
its largest batch, SPECC_TEST_SHAPES=1 draws the shape of every step of a program, SPECC_TEST_LACK=request loses the
hidden states of that one on its way from the server that prefilled it, SPECC_TEST_STATES=1 keeps states of recurrent
layers, SPECC_TEST_COMPRESSED=1 attends over compressed keys, SPECC_TEST_SPARSE=1 to tokens that an index picks, and
with TRITON_INTERPRET=1 FlashAttention 3 may be asked for. The internal state gets `specc_testing`: the
accounting of KV slots, states and pool rows, what every rank emitted, ran and gathered of logits, and how many steps
were planned.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from specc_testing_blocks import draft_blocks
from specc_testing_ranks import GROUP, exchange
from specc_testing_states import keep_states
from torch import Tensor

ON_CPU = os.environ.get("SGLANG_USE_CPU_ENGINE") == "1"
OVERLAP = "SPECC_TEST_OVERLAP"
NAN = "SPECC_TEST_NAN"
INTERPRET = "TRITON_INTERPRET"
PLAN = "SPECC_TEST_PLAN"
PAD = "SPECC_TEST_PAD"
SHAPES = "SPECC_TEST_SHAPES"
LACK = "SPECC_TEST_LACK"
STATES = "SPECC_TEST_STATES"
COMPRESSED = "SPECC_TEST_COMPRESSED"
SPARSE = "SPECC_TEST_SPARSE"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
LORA = "sglang.srt.lora.lora_manager.LoRAManager.__init__"
LOGITS = "sglang.srt.layers.logits_processor.LogitsProcessor.forward"
STATE = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController.get_internal_state"


HOPPER = 9, 0
"""The capability of the GPUs that FlashAttention 3 is for."""
EXPERTS = "sglang.srt.layers.moe.fused_moe_native.moe_forward_native"
QUEUE = f"{SCHEDULER}._add_request_to_queue"
TRANSFERRED = "sglang.srt.disaggregation.decode.DecodeTransferQueue._commit_transfer_to_req"
FLASH = "sglang.srt.layers.attention.flashattention_backend.FlashAttentionBackend.init_forward_metadata"
_requests: dict[str, Any] = {}
"""Those that came to this rank, by name."""
_gathers = Counter[str]()
"""What this rank has gathered, by the method."""
_logits = Counter[str]()
"""Forwards whose logits were gathered, by their mode, and, behind `kept `, those whose were not."""
_prepared = Counter[str]()
"""Forwards that FlashAttention was prepared for by SGLang itself, by their mode."""
_verified: list[bool] = []
"""Of each verification, whether its logits were gathered."""
_planned = Counter[str]()
"""Steps that were planned, and then run with these lengths."""


class WithAmx:
    """The platform, said to have AMX: its operators are stand-ins that need none."""

    has_amx = True

    def __init__(self, platform: object) -> None:
        self.platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self.platform, name)


def register() -> None:
    """Entry point."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if ON_CPU:
        have_amx()
        wait_for_nothing()
        draft_blocks()
        exchange()
        keep_results()
        HookRegistry.register(f"{SCHEDULER}.__init__", send_at_once, HookType.BEFORE)
        HookRegistry.register(LORA, pin_nothing, HookType.BEFORE)
        HookRegistry.register(EXPERTS, leave_out_others, HookType.AROUND)
    HookRegistry.register(STATE, add_accounting, HookType.AROUND)
    HookRegistry.register(QUEUE, note, HookType.BEFORE)
    HookRegistry.register(LOGITS, note_logits, HookType.AROUND)
    for method in ("all_gather", "all_gather_into_tensor"):
        HookRegistry.register(f"{GROUP}.{method}", note_gather(method), HookType.BEFORE)
    if ON_CPU and os.environ.get(OVERLAP) == "1":
        keep_overlap()
    if os.environ.get(INTERPRET) == "1":
        allow_flash_attention()
        HookRegistry.register(FLASH, note_preparation, HookType.BEFORE)
    if os.environ.get(STATES) == "1":
        keep_states()
    if os.environ.get(COMPRESSED) == "1":
        from specc_testing_compressed import compress_keys  # stand-ins that are nowhere beside SGLang's own kernels

        pin_nothing()
        compress_keys()
    if os.environ.get(SPARSE) == "1":
        import specc_testing_sparse as sparse

        if ON_CPU:
            pin_nothing()
            sparse.pick_tokens()
        else:
            sparse.attend_by_fa3()
    if os.environ.get(PLAN) == "1":
        HookRegistry.register(f"{SCHEDULER}.__init__", plan_attention, HookType.AFTER)
    if os.environ.get(PAD) == "1":
        HookRegistry.register(f"{SCHEDULER}.__init__", pad_steps, HookType.AFTER)
    if os.environ.get(SHAPES) == "1":
        HookRegistry.register(f"{SCHEDULER}.__init__", shuffle_shapes, HookType.AFTER)
    if LACK in os.environ:
        HookRegistry.register(TRANSFERRED, lose_hidden_states, HookType.AFTER)
    if NAN in os.environ:
        HookRegistry.register(LOGITS, spoil(int(os.environ[NAN])), HookType.AROUND)


def have_amx() -> None:
    """Let SGLang see AMX."""
    from sglang.srt.arg_groups import overrides

    platform = overrides.get_platform
    overrides.get_platform = lambda: WithAmx(platform())


def wait_for_nothing() -> None:
    """Let modules of multi-token prediction share the target's head, for which they wait for a GPU."""
    torch.cuda.synchronize = lambda: None


def keep_results() -> None:
    """Let SGLang keep results of requests in memory of the host that no GPU knows of."""
    from sglang.srt.mem_cache.pool_host import common

    common.ALLOC_MEMORY_FUNCS["cpu"] = lambda shape, *, dtype, **_: torch.empty(shape, dtype=dtype)


def send_at_once(*_: Any, **__: Any) -> None:
    """Let a server that prefills send KV rows without waiting for a GPU.

    Not before: what is imported takes prometheus_client, which SGLang has to have told where figures go.
    """
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

    MooncakeKVSender.supports_host_tensor_indices = False


def pin_nothing(*_: Any, **__: Any) -> None:
    """Let SGLang prepare adapters in memory of the host that no GPU knows of."""
    torch.Tensor.pin_memory = lambda tensor: tensor
    for name in ("tensor", "empty", "zeros"):
        make = getattr(torch, name)
        setattr(torch, name, lambda *given, make=make, pin_memory=False, **named: make(*given, **named))


def leave_out_others(original: Callable[..., Any], layer: Any, states: Tensor, chosen: Any, config: Any) -> Tensor:
    """Run experts of which those of other ranks, and those of no token, are numbered -1, as SGLang's kernels know it.

    One choice after the other: what is asked has room for one expert of a number in each row.
    """
    if not (chosen.topk_ids < 0).any():
        return original(layer, states, chosen, config)
    total = torch.zeros_like(states)
    for weights, ids in zip(chosen.topk_weights.split(1, 1), chosen.topk_ids.split(1, 1), strict=True):
        choice = chosen._replace(topk_ids=ids.clamp_min(0), topk_weights=weights.masked_fill(ids < 0, 0))
        total += original(layer, states, choice, config)
    return total


def keep_overlap() -> None:
    """Take away what turns the overlap schedule off on a CPU, and the one Triton kernel on its way.

    Streams of a CPU do nothing, so that a forward is over when it is launched; the order in which the host launches
    forwards and reads results is that of a GPU. As with the backends that most GPUs run, lengths are known to the
    device alone, unless the host plans attention. What a step leaves for the next one must be taken once: SGLang
    checks, unless a program runs, which shares memory with what SGLang would overwrite.
    """
    from sglang.srt.arg_groups import speculative_hook
    from sglang.srt.layers.attention import intel_amx_backend as attention
    from sglang.srt.managers import overlap_utils

    speculative_hook._disable_overlap_schedule_for_cpu = lambda server_args: None
    overlap_utils.gather_spec_extras = gather_spec_extras
    if os.environ.get(PLAN) != "1":
        attention.IntelAMXAttnBackend.needs_cpu_seq_lens = False
        attention.IntelAMXMultiStepDraftBackend.needs_cpu_seq_lens = False
    if not os.environ.get("SPECC_PROGRAM"):
        overlap_utils._DEBUG_ASSERT = True
        overlap_utils._assert_nonneg_and_invalidate = take


def allow_flash_attention() -> None:
    """Say that FlashAttention 3 runs here, whose operators are stand-ins, and make masks of trees as it reads them."""
    from sglang.kernels.ops.attention import flash_attention_v3
    from sglang.srt.layers.attention import attention_registry, flashattention_backend, verify_mask
    from sglang.srt.speculative import eagle_worker_v2, multi_layer_eagle_worker_v2, standalone_worker_v2
    from sglang.srt.speculative.eagle_utils import TreeMaskMode

    backend = flashattention_backend.FlashAttentionBackend
    backend.get_cpu_graph_seq_len_fill_value = backend.get_cuda_graph_seq_len_fill_value
    attention_registry.get_device_capability = lambda: HOPPER
    flash_attention_v3._is_fa3_supported = lambda: True
    for module in (verify_mask, eagle_worker_v2, multi_layer_eagle_worker_v2, standalone_worker_v2):
        module.default_tree_mask_mode = lambda: TreeMaskMode.FULL_MASK


def plan_attention(_: Any, scheduler: Any, *__: Any, **___: Any) -> None:
    """Have a program's attention ask for plans, which are then compared with the lengths that a step runs with."""
    (attention,) = scheduler.draft_worker.steps._attention.values()
    plans: list[list[int]] = []

    class Planned(type(attention._backends[0])):
        plans = True

        def plan(self, rows: int, lengths: Any) -> None:
            plans.append([*lengths])
            _planned["planned"] += 1

        def begin(self, batch: Any) -> None:
            expected, given_lengths = plans.pop(), batch.seq_lens.tolist()
            if expected != given_lengths:
                raise AssertionError(f"planned for {expected}, run with {given_lengths}")
            _planned["run"] += 1

    for backend in attention._backends:
        backend.__class__ = Planned


def pad_steps(_: Any, scheduler: Any, *__: Any, **___: Any) -> None:
    """Have a program of one shape run all of its steps with as many rows, as captured ones have those of a bucket."""
    step = scheduler.draft_worker.steps.step
    (buckets,) = step.buckets.values()
    step.decode = partial(step.decode, at_least=buckets[-1])


def shuffle_shapes(_: Any, scheduler: Any, *__: Any, **___: Any) -> None:
    """Draw the shapes of a program's steps, on all ranks the same, unless SGLang itself changes them."""
    draw, steps = random.Random(0), scheduler.draft_worker.steps
    if getattr(scheduler.draft_worker, "adaptive_controller", None) is None:
        steps.shapes.choose = lambda requests: draw.choice([*steps._plans])


def lose_hidden_states(_: Any, queue: Any, decode_req: Any) -> None:
    """Have one request come without what its draft goes on from."""
    if decode_req.req.rid == os.environ[LACK]:
        decode_req.req.hidden_states_tensor = None


def spoil(token: int) -> Callable[..., Any]:
    """Have the target score NaN after one token, where it verifies."""

    def forward(original: Callable[..., Any], processor: Any, input_ids: Tensor, *given: Any, **named: Any) -> Any:
        output = original(processor, input_ids, *given, **named)
        metadata = next(argument for argument in (*given, *named.values()) if hasattr(argument, "forward_mode"))
        if metadata.forward_mode.is_target_verify():
            output.next_token_logits[input_ids == token] = float("nan")
        return output

    return forward


def gather_spec_extras(rows: Tensor, *buffers: Tensor | None) -> tuple[Tensor | None, ...]:
    """The rows [b] of each buffer."""
    return tuple(None if buffer is None else buffer[rows] for buffer in buffers)


def take(values: Tensor, buffer: Tensor, rows: Tensor) -> None:
    """Check that values, taken from the rows of a buffer, were written, and make sure that they are written anew."""
    if (values < 0).any():
        raise AssertionError(f"rows {rows.tolist()} were taken twice, or before they were written")
    buffer[rows] = -1


def note(scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
    """Remember a request that is queued, so that all that it has emitted is known at the end."""
    _requests[request.rid] = request


def note_preparation(_: Any, batch: Any) -> None:
    """Count a forward."""
    _prepared[batch.forward_mode.name] += 1


def note_gather(method: str) -> Callable[..., None]:
    """Count the calls of a method."""

    def count(*_: Any, **__: Any) -> None:
        _gathers[method] += 1

    return count


def note_logits(original: Callable[..., Any], processor: Any, *given: Any, **named: Any) -> Any:
    """Count a forward, by whether anything was gathered for its logits."""
    before = _gathers.total()
    output = original(processor, *given, **named)
    mode = next(argument for argument in (*given, *named.values()) if hasattr(argument, "forward_mode")).forward_mode
    gathered = _gathers.total() > before
    _logits[mode.name if gathered else f"kept {mode.name}"] += 1
    if mode.is_target_verify():
        _verified.append(gathered)
    return output


def add_accounting(get_internal_state: Callable[[Any, Any], Any], controller: Any, request: Any) -> Any:
    """Extend the answer to a request for the internal state."""
    answer = get_internal_state(controller, request)
    answer.internal_state["specc_testing"] = accounting(controller.scheduler)
    return answer


def accounting(scheduler: Any) -> dict[str, Any]:
    """Where all KV slots and pool rows are, and what runs."""
    allocator, cache, rows = scheduler.token_to_kv_pool_allocator, scheduler.tree_cache, scheduler.req_to_token_pool
    worker = scheduler.draft_worker
    return {
        "idle": scheduler.is_fully_idle(),
        "slots": of_pools(allocator, cache),
        "states": of_states(rows, cache),
        "rows": len(rows.req_to_token) - 1,
        "rows_free": len(rows.free_slots),
        "rows_free_once": len(set(rows.free_slots)),
        "overlap": bool(scheduler.enable_overlap),
        "plans": dict(_planned),
        "prepared": dict(_prepared),
        "pools": [] if worker is None else pools(worker),
        "ranks": of_ranks({name: list(request.output_ids) for name, request in _requests.items()}, worker),
        "worker": None if worker is None else f"{type(worker).__module__}.{type(worker).__qualname__}",
    }


def of_pools(allocator: Any, cache: Any) -> list[dict[str, int]]:
    """The slots of the one pool, or of that of the whole text and that of windows, where some of cached tokens are."""
    cached = cache.all_values_flatten().cpu()
    if not hasattr(allocator, "swa_attn_allocator"):
        return [of_pool(allocator, cached, cache.evictable_size(), cache.protected_size())]
    seconds = allocator.full_to_swa_index_mapping.cpu()
    if (seconds > 0).sum() != (seconds[cached] > 0).sum():
        raise AssertionError("slots that nobody has are mapped")
    windows = seconds[cached][seconds[cached] > 0]
    return [
        of_pool(allocator.full_attn_allocator, cached, cache.full_evictable_size(), cache.full_protected_size()),
        of_pool(allocator.swa_attn_allocator, windows, cache.swa_evictable_size(), cache.swa_protected_size()),
    ]


def of_states(rows: Any, cache: Any) -> dict[str, int]:
    """How many recurrent states there are room for, and how many are free, or are those of cached prefixes."""
    allocator = getattr(rows, "mamba_allocator", None)
    if allocator is None:
        return {}
    cached = cache.all_mamba_values_flatten() if hasattr(cache, "all_mamba_values_flatten") else ()
    return {"all": allocator.size, "free": allocator.available_size(), "cached": len(cached)}


def of_pool(allocator: Any, slots: Tensor, cached: int, protected: int) -> dict[str, int]:
    """How many slots a pool has, and how many are free, or are those i64[n] of cached tokens, as SGLang counts them."""
    pages = allocator.get_all_free_pages().cpu()
    free = pages[:, None] * allocator.page_size + torch.arange(allocator.page_size)
    counted = {"all": allocator.size, "free": allocator.available_size(), "cached": cached, "protected": protected}
    return counted | {"owned_once": torch.unique(torch.cat((free.flatten(), slots))).numel()}


def pools(worker: Any) -> list[str]:
    """The kinds of KV cache that target and draft have, or the target alone where drafts are looked up."""
    runners = [worker.target_worker.model_runner]
    if worker.draft_worker is not None:
        runners.append(worker.draft_worker.draft_runner)
    return [type(runner.token_to_kv_pool).__name__ for runner in runners]


def of_ranks(tokens: dict[str, list[int]], worker: Any) -> list[dict[str, Any]]:
    """Of every rank the tokens that requests have emitted there, and what its program ran."""
    from sglang.srt.runtime_context import get_parallel

    steps = getattr(worker, "steps", None)
    of_rank = {"tokens": tokens, "specc": None if steps is None else steps.report()}
    of_rank |= {
        "logits": dict(_logits),
        "turns": sum(verified != next_verified for verified, next_verified in pairwise(_verified)),
    }
    group = get_parallel().attn_tp_group
    return group.all_gather_object(of_rank) if group.world_size > 1 else [of_rank]
