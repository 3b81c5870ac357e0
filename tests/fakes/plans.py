"""Plans of small programs, compiled once, as `plan.json` holds them; a test that needs an impossible one changes one.

A program is bound to the reference backend, so no machine code is behind it.
"""

from __future__ import annotations

import json
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from programs import config_text

from specc import runtime
from specc.compiler import algorithms
from specc.compiler.config import load_text
from specc.compiler.driver.build import build_program
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.plan.files.manifest import Manifest
from specc.runtime.plan.files.plan_json import plan_text
from specc.runtime.plan.plan import Plan
from specc.runtime.program import Program

Json = dict[str, Any]
WINDOW, LONGEST, SHORTEST = 64, 4, 1
"""What `lookup_plan` keeps of a text, and how many last tokens it looks up."""
NAMES = (
    *("AcceptanceShape", "Batch", "Carry", "FixedShape", "Forward", "Sampling", "SpeccError"),
    *("faults", "measure_step_times", "read_step_times"),
)
"""Public names that adapters take from the package of a program."""
PAGE = 4
"""The page size of `tree_plan`."""


def compiled(text: str) -> Json:
    """The plan of a configuration, which is compiled once; whoever asks may change it."""
    return json.loads(_written(text))


@cache
def _written(text: str) -> str:
    return plan_text(build_program(load_text(text, Path("toy.yaml"), algorithms.names(), algorithms.needs)).plan)


def _of_models(algorithm: str, *, batch: int, pool: int, model: Json, target: Json | None = None, **keys: Any) -> Json:
    """The plan of a configuration whose models are alike; ``target`` has what only the target says."""
    layers = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 4}
    buckets = [bucket for bucket in (1, 2, 4, 8) if bucket <= batch]
    keys |= {"buckets": buckets, "max_requests": pool - 1, "target": layers | model | (target or {})}
    return compiled(config_text(algorithm, draft=layers | model, **keys))


def chain_plan(
    *,
    hidden: bool = False,
    overlap: bool = False,
    steps: int = 3,
    vocab: int = 32,
    width: int = 4,
    batch: int = 4,
    pool: int = 8,
) -> Json:
    """The plan of a greedy chain: K = 1, N = A = steps + 1.

    ``hidden`` makes the draft read hidden states (shifted positions), else it is an ordinary language model at its
    true positions; ``overlap`` relays the committed lengths.
    """
    keys = {"name": "toy_chain", "num_steps": steps, "overlap": overlap}
    model = {"hidden_size": width, "vocab_size": vocab}
    return _of_models("EAGLE" if hidden else "STANDALONE", batch=batch, pool=pool, model=model, **keys)


def lookup_plan(*, steps: int = 3, corpus: bool = True, vocab: int = 32) -> Json:
    """The plan of a chain of looked-up drafts that relays the committed lengths."""
    options: Json = {"window": WINDOW, "longest": LONGEST, "shortest": SHORTEST}
    options |= {"corpus": "words.txt"} if corpus else {}
    keys = {"name": "toy_lookup", "num_steps": steps, "overlap": True, "options": options}
    return _of_models("NGRAM", batch=4, pool=8, model={"vocab_size": vocab}, **keys)


def tree_plan(*, layers: int = 2, heads: int = 1, kv_dtype: str = "float32") -> Json:
    """The plan of a tree: K = 2 branches, N = 5 nodes, paths of A = 3; every node has 3 experts of each layer.

    Target and draft have ``layers`` layers of keys and values, of ``heads`` heads of 4 numbers.
    """
    keys = {"name": "toy_tree", "num_steps": 2, "topk": 2, "num_draft_tokens": 5, "mask": "bitpacked"}
    keys |= {"page_size": PAGE, "overlap": False, "outputs": ["routed_experts"]}
    model = {"num_layers": layers, "num_kv_heads": heads, "kv_dtype": kv_dtype, "vocab_size": 16}
    return _of_models("STANDALONE", batch=4, pool=6, model=model, target={"experts_per_token": 3}, **keys)


def node_of(plan: Json, name: str) -> Json:
    """The node of a plan with a name."""
    (match,) = [node for phase in plan["phases"] for node in phase["nodes"] if node["name"] == name]
    return match


def by_torch(plan: Json, *names: str) -> Json:
    """The plan, whose launches of these names are references instead."""
    nodes = [node for phase in plan["phases"] for node in phase["nodes"]]
    for node in nodes:
        if node["name"] in names:
            kernel = node.pop("kernel")
            node["kind"] = "reference"
            del node["args"], node["grid"]
            if all(remaining.get("kernel") != kernel for remaining in nodes):
                del plan["kernels"][kernel]
    return plan


def program_of(plan: Plan, *others: Plan) -> Program:
    """A program on the reference backend, of a wheel without any file; `others` are the plans of other shapes."""
    manifest = Manifest(plan.name, "0", "0", plan.specc, None, 3, torch.__version__, (), {}, (), {}, {})
    return Program((plan, *others), manifest, torch.device("cpu"), ReferenceBackend())


def package_of(plan: Plan, name: str, *others: Plan) -> ModuleType:
    """The package of a wheel with that program, of this name: with the adapters, which import it, and without files."""
    from specc import engines  # the compiler's tests have none

    made = ModuleType(name)
    made.__path__ = [*engines.__path__]  # type: ignore[attr-defined]
    vars(made).update({name: getattr(runtime, name) for name in NAMES})
    plans = {of_shape.shape: of_shape for of_shape in sorted((plan, *others), key=attrgetter("shape"), reverse=True)}
    vars(made).update(plan=plan, plans=plans, load=lambda device: program_of(plan, *others), __version__="0.1.0+p1")
    return made
