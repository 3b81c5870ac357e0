"""Small programs for tests: configurations without model directories, and modules after any pass."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from specc.compiler.algorithms import names, needs
from specc.compiler.config import LoadedConfig, load_text
from specc.compiler.driver.build import build_program
from specc.compiler.driver.compile import start_module
from specc.compiler.ir.core import Module
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.pass_manager.manager import run_passes
from specc.compiler.pass_manager.pass_base import Context, Pass
from specc.compiler.passes.invariants import CheckEach
from specc.compiler.passes.pipeline import PASSES
from specc.runtime.plan.files.plan_json import plan_text
from specc.runtime.plan.plan import Plan

MODEL: dict[str, Any] = {
    "hidden_size": 64,
    "num_layers": 2,
    "num_kv_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
    "dtype": "float32",
}
"""A model of either side, small enough for the reference semantics to be quick."""

_AUX = ({"aux_layers": [1, 2]}, {"num_aux_layers": 2})
BESIDES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "EAGLE3": _AUX,
    "DFLASH": _AUX,
    "DSPARK": (_AUX[0], _AUX[1] | {"markov_rank": 24}),
    "DFLASH2": (_AUX[0], _AUX[1] | {"selector_rank": 24, "selector_top_k": 4}),
    "MULTI_LAYER_EAGLE": ({}, {"num_layers": 16}),
}
"""What target and draft say besides: rows of several of the target's layers, or a module for every step."""

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


def config_text(
    algorithm: str = "EAGLE",
    *,
    target: dict[str, Any] | None = None,
    draft: dict[str, Any] | None = None,
    **keys: Any,
) -> str:
    """The YAML of a small configuration; ``keys`` and the model blocks replace the defaults, None leaves a key out."""
    more = BESIDES.get(algorithm, ({}, {}))
    drafted = {} if "shapes" in keys else {"num_steps": 3}
    top: dict[str, Any] = {"name": "small", "algorithm": algorithm, **drafted, "buckets": [1, 2, 4]} | keys
    top["target"] = _said(MODEL | more[0] | (target or {}))
    if _has_draft(algorithm):
        top["draft"] = _said(MODEL | more[1] | (draft or {}))
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in top.items())


def _has_draft(algorithm: str) -> bool:
    """Whether an algorithm has a draft, as one that is not installed does.."""
    try:
        return needs(algorithm).draft
    except KeyError:
        return True


def _said(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if value is not None}


def load(algorithm: str = "EAGLE", **keys: Any) -> LoadedConfig:
    """The configuration of `config_text`, loaded."""
    return load_text(config_text(algorithm, **keys), Path("small.yaml"), names(), needs)


def planned(algorithm: str = "EAGLE", **keys: Any) -> tuple[Plan, ...]:
    """The plans of `config_text`, the deepest first. Each configuration is compiled once in a process."""
    return _plans(config_text(algorithm, **keys))


@cache
def _plans(text: str) -> tuple[Plan, ...]:
    built = build_program(load_text(text, Path("small.yaml"), names(), needs))
    return tuple(shape.plan for shape in built.shapes)


def passes_to(last: str, loaded: LoadedConfig | None = None) -> list[Pass]:
    """Passes of a build up to and including one, with the options of a configuration."""
    order = list(PASSES)
    names = order[: order.index(last) + 1]
    return [PASSES[name]() if loaded is None else PASSES[name].of(loaded) for name in names]


def compile_to(last: str, loaded: LoadedConfig) -> Module:
    """The module after the pass ``last``, checked after each pass."""
    module = start_module(loaded)
    run_passes(module, passes_to(last, loaded), Context(loaded), [CheckEach()])
    return module


def run_on(text: str, *steps: Pass) -> tuple[Module, Context]:
    """A module from its text after some passes, checked after each."""
    module, ctx = parse_module(text, "test.specir"), Context()
    run_passes(module, steps, ctx, [CheckEach()])
    return module, ctx


def written(plan: Plan) -> dict[str, Any]:
    """A plan as a reader of the file sees it."""
    return json.loads(plan_text(plan))


def brought() -> dict[str, Any]:
    """The references of the ops that plugins have brought into this process, as the runtime finds them in a wheel."""
    return {name: op.reference for name, op in OPS.items() if op.reference is not None}
