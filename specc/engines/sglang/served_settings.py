"""Settings of a server that programs are served with: which values are, and what others ask for.

Imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable

SETTINGS: dict[str, tuple[object, str]] = {
    "pp_size": (1, "pipeline parallelism"),
    "dp_size": (1, "data parallelism"),
    "attn_cp_size": (1, "context parallelism"),
    "dcp_size": (1, "context parallelism of decode"),
    "dwdp_size": (1, "data parallelism of weights"),
    "moe_dp_size": (1, "data parallelism of experts"),
    "moe_a2a_backend": ("none", "expert parallelism by all-to-all"),
    "speculative_moe_a2a_backend": ("none", "expert parallelism of the draft by all-to-all"),
    "enable_eplb": (False, "experts that are balanced while the server runs"),
    "elastic_ep_backend": (None, "expert parallelism of a number of ranks that changes"),
    "expert_distribution_recorder_mode": (None, "a record of how tokens go to experts"),
    "moe_dense_tp_size": (None, "hidden states that are scattered over ranks"),
    "enable_attn_tp_input_scattered": (False, "hidden states that are scattered over ranks"),
    "enable_layernorm_sp": (False, "hidden states that are scattered over ranks"),
    "enable_kv_cache_sharding": (False, "a KV cache that is shared out over ranks"),
    "enable_pdmux": (False, "prefill and decode multiplexed on one GPU"),
    "disaggregation_mode": (("null", "decode"), "a server that only prefills"),
    "enable_pd_role_switch": (False, "prefill and decode that change places while servers run"),
    "decoupled_spec_role": ("null", "a draft in a process of its own"),
    "speculative_ngram_external_corpus_path": (None, "a corpus of the server's that drafts are looked up in"),
    "speculative_draft_window_size": (None, "a window of the draft's"),
    "enable_unified_memory": (False, "a unified pool of keys and values"),
    "enable_page_major_kv_layout": (False, "a KV cache laid out page by page"),
    "enable_hisparse": (False, "a hierarchical sparse KV cache"),
    "lora_backend": (("csgmv", "triton", "torch_native"), "LoRA with graphs of its own for batches without adapters"),
    "enable_return_indexer_topk": (False, "the indexer's top-k as results"),
    "dsv4_attn_backend": (("auto", "flashmla"), "other kernels for compressed keys"),
    "enable_encoder_swa_bounded_replay": (False, "windows that each request keeps for itself"),
    "SGLANG_OPT_USE_ONLINE_COMPRESS": (False, "keys that are compressed online"),
    "SGLANG_DSPARK_DEFER_CONTEXT_KV": (False, "a block's context that is written a step later"),
    "forward_hooks": (None, "forward hooks"),
    "kv_canary": ("none", "a canary of the KV pool"),
    "SGLANG_IS_IN_CI": (False, "state that SGLang overwrites to find faults of its own"),
}
"""Argument or environment variable of SGLang's -> what is served, one value or several, and what others ask for."""

DATA_PARALLEL: dict[str, tuple[object, str]] = {
    "enable_lora": (False, "LoRA"),
    "enable_return_routed_experts": (False, "experts as results"),
    "disaggregation_mode": ("null", "prefill and decode on two servers"),
    "speculative_use_rejection_sampling": (False, "rejection sampling"),
    "speculative_use_block_verification": (False, "block verification"),
    "enable_tp_lm_head_all_to_all": (False, "logits by all-to-all"),
    "SGLANG_SCHEDULER_SKIP_ALL_GATHER": (False, "schedulers that gather nothing"),
    "SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION": (False, "prefill beside decode steps"),
}
"""The same where attention is data parallel, in the place of what `SETTINGS` has and beside it."""

RECURRENT: dict[str, tuple[object, str]] = {
    "disaggregation_mode": ("null", "prefill and decode on two servers"),
}
"""The same where a target keeps a recurrent state."""

LOOKS_UP: dict[str, tuple[object, str]] = {"enable_linear_replayssm_spec": (False, "records of recurrent states")}
"""The same where layers beside them look n-grams up in what SGLang's commit of records leaves as it is (Qwen4-Exp)."""

OF_KINDS: dict[str, tuple[object, str]] = {"enable_multi_layer_eagle": (False, "multi-layer EAGLE")}
"""Settings by which SGLang takes a kind of draft (`KindOfDraft.setting`): then no other kind is served."""

DETERMINISTIC = "enable_deterministic_inference"
BESIDE_BUDGETS: dict[str, tuple[object, str]] = {DETERMINISTIC: (False, "deterministic inference")}
"""Settings that count beside some budgets of rows alone (`served.beside_budgets`)."""

WEIGHING: dict[str, str] = {
    "speculative_use_block_verification": "block",
    "speculative_use_rejection_sampling": "rejection",
}
"""Settings by which drafts are drawn and weighed by what they were drawn from -> a program's `verify`; the first that
stands counts."""

UNDER: dict[str, dict[str, tuple[object, str]]] = {
    "under data parallelism": DATA_PARALLEL,
    "beside recurrent state": RECURRENT,
    "beside n-grams": LOOKS_UP,
}
"""What else counts under which condition, in words that stand behind what is refused."""
NAMES = frozenset(SETTINGS).union(OF_KINDS, BESIDE_BUDGETS, *UNDER.values())
"""All settings."""


def served_under(conditions: Iterable[str] = ()) -> dict[str, tuple[tuple[object, ...], str]]:
    """Return of each setting that counts under conditions of `UNDER` the values that are served, and its words."""
    table = {name: (_values(served), what) for name, (served, what) in SETTINGS.items()}
    for condition in conditions:
        for name, (served, what) in UNDER[condition].items():
            table[name] = _values(served), f"{what} {condition}"
    return table


def served_anyhow(conditions: Iterable[str] = ()) -> dict[str, tuple[tuple[object, ...], str]]:
    """Return the same of all settings: where conditions say nothing of one, as some other condition has it."""
    of_kinds = {name: (_values(served), what) for name, (served, what) in (OF_KINDS | BESIDE_BUDGETS).items()}
    return of_kinds | served_under(UNDER) | served_under(conditions)


def _values(served: object) -> tuple[object, ...]:
    return served if isinstance(served, tuple) else (served,)
