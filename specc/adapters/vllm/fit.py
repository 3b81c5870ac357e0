"""Whether a program is the one that a server's arguments and models describe."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

RANKS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
    "decode_context_parallel_size",
)
METHODS = {
    "STANDALONE": ("draft_model",),
    "EAGLE": ("eagle", "mtp"),
    "EAGLE3": ("eagle3",),
    "NGRAM": ("ngram", "ngram_gpu"),
}
"""Algorithm of a program -> vLLM's `method` of the same."""


def misfits(plan: Any, config: Any, kind: type, served: Collection[type]) -> list[str]:
    """What is in the way of running the program of `plan` in a server of this VllmConfig; nothing if it fits.

    `kind` is the class of the server's own speculator, `served` are those that a program may stand for.
    """
    if kind not in served:
        names = ", ".join(sorted(one.__name__ for one in served))
        return [f"drafts are those of {kind.__name__}, served are {names}"]
    return [*_unserved(config), *_arguments(plan, config), *_models(plan, config)]


def draft_group(speculator: Any) -> int:
    """The group of KV caches that all layers of the draft are in. RuntimeError when there are several."""
    groups = speculator.kv_cache_config.kv_cache_groups
    found = [place for place, group in enumerate(groups) if speculator.draft_attn_layer_names & set(group.layer_names)]
    if len(found) != 1:
        raise RuntimeError(f"layers of the draft are in {len(found)} groups of KV caches")
    return found[0]


def _unserved(config: Any) -> Iterator[str]:
    """What no program does in vLLM."""
    parallel, spec = config.parallel_config, config.speculative_config
    for name in RANKS:
        if getattr(parallel, name) != 1:
            yield f"{name} is {getattr(parallel, name)}"
    if parallel.use_ubatching:
        yield "microbatches"
    if parallel.enable_eplb:
        yield "experts move between ranks (enable_eplb)"
    if spec.draft_sample_method != "greedy":
        yield f"draft_sample_method is {spec.draft_sample_method}: drafts of a program are the most probable tokens"
    if spec.rejection_sample_method != "standard":
        yield f"rejection_sample_method is {spec.rejection_sample_method}"
    if spec.enable_adaptive_verification or spec.uses_dynamic_speculative_decoding():
        yield "the number of drafts changes"
    for name in ("use_local_argmax_reduction", "parallel_drafting"):
        if getattr(spec, name):
            yield name
    if getattr(spec.draft_model_config.hf_config, "index_share_for_mtp_iteration", False):
        yield "modules share the tokens that sparse attention picks"
    if config.model_config.return_sampling_mask:
        yield "sampling masks are returned"
    if getattr(config, "watermark_config", None) is not None:
        yield "watermarks"


def _arguments(plan: Any, config: Any) -> Iterator[str]:
    spec, most = config.speculative_config, config.scheduler_config.max_num_seqs
    if spec.method not in METHODS[plan.algorithm]:
        yield f"the program is of {plan.algorithm}, the server's method is {spec.method}"
    if plan.size("S") != spec.num_speculative_tokens:
        yield f"num_steps is {plan.size('S')} in the program, {spec.num_speculative_tokens} in the server"
    if most > plan.size("P") - 1:
        yield f"the server keeps {most} requests, the program {plan.size('P') - 1} (max_requests)"
    if plan.buckets[-1] > most:
        yield f"the largest bucket is {plan.buckets[-1]}, the server keeps {most} requests (max_num_seqs)"
    if plan.algorithm == "NGRAM" and spec.method in METHODS["NGRAM"]:
        yield from _looked_up(plan.options, config.model_config.max_model_len, spec)


def _looked_up(options: Any, longest: int, spec: Any) -> Iterator[str]:
    """What differs in how drafts are looked up, by the program's names and vLLM's."""
    wanted = {"window": ("max_model_len", longest)}
    for mine, theirs in (("longest", "prompt_lookup_max"), ("shortest", "prompt_lookup_min")):
        wanted[mine] = theirs, getattr(spec, theirs)
    for mine, (theirs, value) in wanted.items():
        if options[mine] != value:
            yield f"options.{mine} is {options[mine]} in the program, {theirs} is {value} in the server"


def _models(plan: Any, config: Any) -> Iterator[str]:
    models = {"target": config.model_config, "draft": config.speculative_config.draft_model_config}
    for role, mine in plan.models.items():
        model, dtype = models[role], str(models[role].dtype).removeprefix("torch.")
        dtype = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}.get(dtype, dtype)
        # Heads of a part of the tokens hand over scores of all.
        sizes = {"vocab_size": config.model_config.get_vocab_size(), "hidden_size": model.get_hidden_size()}
        for name, theirs in {**sizes, "dtype": dtype, "logits_dtype": dtype}.items():
            if getattr(mine, name) != theirs:
                yield f"{name} of the {role} is {getattr(mine, name)} in the program, {theirs} in the server"
