"""Programs for vLLM, as a user would make them: a configuration that says so, built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import engine_job
from engine_job import specc
from vllm_models import ASSISTANT, TOKEN_MAP, WIDE
from vllm_server import MODEL_LEN, NGRAM, ROWS, Variant

ALGORITHMS = {
    "draft_model": "STANDALONE",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "EAGLE",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
}
"""Methods of vLLM's that models draft by, and what specc calls them."""
BY_DRAFT = {"glm": "MULTI_LAYER_EAGLE", ASSISTANT: "FROZEN_KV_MTP"}
"""The same of drafts that are of another kind than others of their method."""
BUCKETS = (1, 2, ROWS)
"""So that a batch of three has a padding row."""
DRAWS = "{}\nsampling: [penalties, top_k, top_p]"
"""The value of `verify` of a program that draws, and a key behind it."""
CONFIG = """
name: {name}
engine: vllm
algorithm: {algorithm}
page_size: {block}
tensor_parallel: {ranks}
topk: 1
num_steps: {num_steps}
buckets: {buckets}
verify: {verify}{budget}
archs: [sm_90]
target: {{model: {models}/{target}{dtype}}}
{drafts}
"""
DRAFT = "draft: {{model: {models}/{draft}{dtype}{head}}}"
LOOKED_UP = (
    f"options: {{window: {MODEL_LEN}, longest: {NGRAM['prompt_lookup_max']}, shortest: {NGRAM['prompt_lookup_min']}}}"
)


def same_program(variant: Variant) -> Variant:
    """The variant that stands for all with the same program, which knows of ranks where they share out its head."""
    ranks = variant.ranks if variant.head else 1
    return replace(variant, ahead=False, cached=False, canaries=True, capture="", ranks=ranks, shape="")


def build_program(
    variant: Variant, models: Path, folder: Path, buckets: Sequence[int] = BUCKETS, name: str = "served"
) -> Path:
    """The wheel for a variant's engine, built in a new folder. RuntimeError with what specc said."""
    config = write_program(variant, models, folder, buckets, name)
    specc("build", str(config), "-o", str(folder), "--quiet")
    return next(folder.glob("*.whl"))


def write_program(
    variant: Variant, models: Path, folder: Path, buckets: Sequence[int] = BUCKETS, name: str = "served"
) -> Path:
    """The configuration for a variant's engine, in a new folder."""
    folder.mkdir(parents=True)
    config = folder / "program.yaml"
    algorithm = BY_DRAFT.get(variant.draft) or ALGORITHMS.get(variant.method or "", "NGRAM")
    dtype = ", dtype: bfloat16" if variant.half else ""
    dtype += f", head_dim: {WIDE}" if variant.windowed else ""
    named = {"models": models, "target": variant.target, "draft": variant.draft, "dtype": dtype}
    named["head"] = f", head: {variant.head}" if variant.head else ""
    named["head"] += f", token_map: {models / TOKEN_MAP}" if variant.token_map else ""
    drafts = DRAFT.format(**named) if variant.draft else LOOKED_UP
    verify = "greedy"
    if variant.drafting:
        verify = DRAWS.format(variant.drafting if variant.weighs else "target_only")
        verify += "" if variant.weighs else f"\ndraft_sampling: {variant.drafting}"
    sizes = {
        "block": variant.block,
        "ranks": variant.ranks,
        "num_steps": variant.num_steps,
        "buckets": list(buckets),
        "verify": verify,
        "budget": "\nbudget: given" if variant.adaptive else "",
        "name": name,
    }
    config.write_text(CONFIG.format(algorithm=algorithm, drafts=drafts, **named, **sizes))
    return config


def settings(variant: Variant, models: Path) -> dict[str, str]:
    """The environment variables of a variant's program."""
    words = {"SPECC_CAPTURE": variant.capture, "SPECC_SHAPE": variant.shape}
    words |= {"SPECC_TOKEN_MAP": str(models / TOKEN_MAP)} if variant.token_map else {}
    return {name: word for name, word in words.items() if word}


def plugin_wheel(code: str, folder: Path, wheels: Sequence[Path] = ()) -> Path:
    """A wheel with a plugin of vLLM's and all that is in other wheels, named as the first of these."""
    return engine_job.plugin_wheel(code, folder, "vllm.general_plugins", wheels)
