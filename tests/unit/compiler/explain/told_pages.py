"""Pages of small configurations, and their plans."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from programs import config_text, written

from specc.compiler.algorithms import names, needs
from specc.compiler.config import LoadedConfig, load_text
from specc.compiler.driver.build import build_program
from specc.compiler.explain.page.model import Page, gather

TREE = {"topk": 2, "num_draft_tokens": 6, "page_size": 16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "standalone_chain": ("STANDALONE", {}),
    "two": ("STANDALONE", {"num_steps": 2}),
    "eagle_tree": ("EAGLE", TREE),
    "other_buckets": ("EAGLE", TREE | {"buckets": [1, 8]}),
    "sampled_tree": ("EAGLE", TREE | {"verify": "target_only", "verify_rows": "lazy", "sampling": ["top_k"]}),
    "modules": ("MULTI_LAYER_EAGLE", {}),
    "block": ("DFLASH", {}),
    "look_up_chain": ("NGRAM", {}),
    "look_up_tree": ("NGRAM", {"topk": 2, "num_draft_tokens": 6}),
    "rotated": ("EAGLE", {"step": "rotated"}),
    "masks": ("EAGLE", {"verify": "target_only", "sampling": ["grammar"]}),
    "ranks": ("STANDALONE", {"logits": "sharded", "tensor_parallel": 4}),
}


@functools.cache
def loaded(name: str) -> LoadedConfig:
    """A configuration."""
    algorithm, keys = CASES[name]
    return load_text(config_text(algorithm, name=name, **keys), Path(f"{name}.yaml"), names(), needs)


@functools.cache
def page_of(name: str) -> Page:
    """What its page tells."""
    return gather(build_program(loaded(name)).shapes[0])


@functools.cache
def plan_of(name: str) -> Any:
    """Its plan.json."""
    return written(build_program(loaded(name)).plan)
