"""Whether a program is the one that a server's arguments and models describe."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any


def misfits(plan: Any, config: Any, kind: type, served: Collection[type]) -> list[str]:
    """What is in the way of running the program of `plan` in a server of this VllmConfig; nothing if it fits.

    `kind` is the class of the server's own speculator, `served` are those that a program may stand for.
    """
    if kind not in served:
        return [f"drafts are those of {kind.__name__}: served are {', '.join(sorted(one.__name__ for one in served))}"]
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
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size"):
        if getattr(parallel, name) != 1:
            yield f"{name} is {getattr(parallel, name)}"
    if spec.draft_sample_method != "greedy":
        yield f"draft_sample_method is {spec.draft_sample_method}"
    if spec.rejection_sample_method != "standard":
        yield f"rejection_sample_method is {spec.rejection_sample_method}"
    if spec.enable_adaptive_verification:
        yield "enable_adaptive_verification"
    if config.lora_config is not None:
        yield "LoRA"


def _arguments(plan: Any, config: Any) -> Iterator[str]:
    asked = {
        "num_steps": (plan.size("S"), config.speculative_config.num_speculative_tokens),
        "page_size": (plan.kv.page_size, config.cache_config.block_size),
    }
    for name, (mine, theirs) in asked.items():
        if mine != theirs:
            yield f"{name} is {mine} in the program, {theirs} in the server"
    if config.scheduler_config.max_num_seqs > plan.size("P") - 1:
        yield f"the server keeps {config.scheduler_config.max_num_seqs} requests, the program {plan.size('P') - 1} (max_requests)"


def _models(plan: Any, config: Any) -> Iterator[str]:
    models = {"target": config.model_config, "draft": config.speculative_config.draft_model_config}
    for role, model in models.items():
        mine = plan.models[role]
        dtype = str(model.dtype).removeprefix("torch.")
        found = {
            "vocab_size": model.get_vocab_size(),
            "hidden_size": model.get_hidden_size(),
            "dtype": {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}.get(dtype, dtype),
        }
        for name, theirs in found.items():
            if getattr(mine, name) != theirs:
                yield f"{name} of the {role} is {getattr(mine, name)} in the program, {theirs} in the server"
