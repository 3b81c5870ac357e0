"""The facts of a running server on which it hangs whether programs are served, from SGLang's objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.managers import overlap_utils
from sglang.srt.runtime_context import get_disagg, get_exec, get_lora, get_observability, get_parallel, get_spec
from sglang.srt.state_capturer.indexer_topk import get_global_indexer_capturer

from ..attention.roles import BESIDE, roles_of
from ..candidates import candidates_of, in_state
from ..parts.runners import runners_of
from ..parts.states import kept_at_ends, ring_of
from ..served import CACHES, NAMES, STATES, KindOfDraft, ServedModel, Server
from ..served_settings import DETERMINISTIC
from ..windows import first_pool, oddity
from .settings import flag

ENTRIES = {1, 2, 4, 128}
"""Of how many tokens entries of compressed keys are that are served."""
COMMAND_LINE = {"flashinfer_mla": "flashinfer"}
"""Attention backends that the command line calls by the name of another."""
ROWS = "ReqToTokenPool", "DecodeReqToTokenPool", "HybridReqToTokenPool"
"""SGLang's classes of tables of KV slots that are served.

The second is of a server that decodes what another prefills, the third of one whose target keeps a recurrent state.
"""
HYBRID_POOL = "HybridLinearKVPool"
"""SGLang's class of the pool around that of the layers with keys and values, of a model with other layers as well."""
PARALLEL = ("pp_size", "dp_size", "attn_cp_size", "dcp_size", "moe_dp_size", "moe_dense_tp_size")
"""Arguments by whose names SGLang keeps how many ranks came of them."""


def facts(worker: Any) -> Server:
    """The facts of a running server on which it hangs whether programs are served, from SGLang's objects."""
    spec, parallel, runners = get_spec(), get_parallel(), runners_of(worker)
    kind, candidates = worker.kind, candidates_of(worker)
    with in_state(worker, max(candidates, default=0)):
        named = roles_of(worker).named()
    pool, requests = runners["target"].token_to_kv_pool, type(worker.req_to_token_pool).__name__
    target = _facts_of(runners["target"], pool)
    if requests not in ROWS:
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
        candidates=candidates,
        ring=ring_of(worker),
        kept_at_ends=kept_at_ends(worker),
        settings=_settings(worker),
    )


def _facts_of(runner: Any, of_target: Any, kind: KindOfDraft | None = None) -> ServedModel:
    """The facts of a model: of the draft, which is of a kind, what such ones may have.

    A pool is of its very class: others that derive from it keep their rows otherwise.
    """
    config, kept = runner.model_config, runner.token_to_kv_pool
    if type(kept).__name__ == HYBRID_POOL:
        kept = first_pool(kept)
    pool = type(kept).__name__
    cache = next((layout for layout, name in CACHES.items() if name == pool), pool)
    if cache == "swa":
        cache = oddity(kept, of_target, module=kind is not None and bool(kind.each_step)) or cache
    elif cache == "compressed" and not ENTRIES.issuperset(kept.present_ratios):
        cache = f"a {pool} of other entries"
    layers = (getattr(layer, "sliding_window_size", None) or -1 for layer in runner.model.modules())
    return ServedModel(
        cache=f"a unified {pool}" if runner.kv_index_translator.is_translating else cache,
        chunk=config.is_local_attention_model,
        window=bool(runner.sliding_window_size) or any(type(size) is int and size > 0 for size in layers),
        state="" if kind is not None and kind.stateless else _state(runner),
        beside="" if kind is None else kind.model_beside(runner.model),
    )


def _state(runner: Any) -> str:
    """The kind of recurrent state that a model keeps, SGLang's class where it is none of `STATES`; nothing for none."""
    if mambaish_config(runner.model_config) is None:
        return ""
    linear = type(getattr(runner.attn_backend, BESIDE, None)).__name__
    return next((kind for kind, name in STATES.items() if name == linear), linear)


def _settings(worker: Any) -> dict[str, object]:
    """What the server was told, as far as `SETTINGS` has a word on it: by what came of it where SGLang keeps that."""
    parallel, spec, given = get_parallel(), get_spec(), worker.server_args
    resolved = spec, getattr(get_exec(), "kernel", None)  # in the place of what was left to SGLang
    settings = {name: getattr(given, name) for name in NAMES if hasattr(given, name)}
    settings |= {name: flag(name) for name in NAMES if name.isupper()}
    settings |= {name: getattr(of, name) for of in resolved for name in NAMES if hasattr(of, name)}
    runners = runners_of(worker).values()
    return settings | {
        **{name: getattr(parallel, name) for name in PARALLEL},
        "disaggregation_mode": get_disagg().disaggregation_mode,
        "moe_a2a_backend": get_exec().moe.moe_a2a_backend,
        "speculative_moe_a2a_backend": spec.speculative_moe_a2a_backend or "none",
        "forward_hooks": get_observability().forward_hooks or None,
        DETERMINISTIC: get_exec().deterministic.enable_deterministic_inference,
        "kv_canary": "running" if any(runner.canary_manager for runner in runners) else "none",
        "enable_return_indexer_topk": get_global_indexer_capturer() is not None,
        "SGLANG_IS_IN_CI": bool(overlap_utils._DEBUG_ASSERT),
    }
