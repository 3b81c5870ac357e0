"""THE list: every pass, in the order a build runs them."""

from __future__ import annotations

from itertools import chain

from specc.compiler.config import LoadedConfig
from specc.compiler.pass_manager.options import parse_item, parse_options
from specc.compiler.pass_manager.pass_base import Pass
from specc.compiler.passes.assign_layouts import AssignLayouts
from specc.compiler.passes.bind_kv_layout import BindKvLayout
from specc.compiler.passes.canonicalize import Canonicalize
from specc.compiler.passes.check_resources import CheckResources
from specc.compiler.passes.commit_states import CommitStates
from specc.compiler.passes.compute_head import ComputeHead
from specc.compiler.passes.cse import Cse
from specc.compiler.passes.expand_algorithm import ExpandAlgorithm
from specc.compiler.passes.form_kernels import FormKernels
from specc.compiler.passes.gather_logits import GatherLogits
from specc.compiler.passes.infer_types import InferTypes
from specc.compiler.passes.place_carry import PlaceCarry
from specc.compiler.passes.plan_graphs import PlanGraphs
from specc.compiler.passes.plan_memory import PlanMemory
from specc.compiler.passes.prune_dead_dataflow import PruneDeadDataflow
from specc.compiler.passes.rotate_step import RotateStep
from specc.compiler.passes.select_budgets import SelectBudgets
from specc.compiler.passes.select_compaction import SelectCompaction
from specc.compiler.passes.select_tree_form import SelectTreeForm
from specc.compiler.passes.select_verify import SelectVerify
from specc.compiler.passes.specialize_buckets import SpecializeBuckets
from specc.compiler.passes.tune_launches import TuneLaunches

FRONT: tuple[type[Pass], ...] = (
    ExpandAlgorithm,
    InferTypes,
    PruneDeadDataflow,
    SelectTreeForm,
    SelectBudgets,
    SelectVerify,
    SelectCompaction,
    CommitStates,
    RotateStep,
    PlaceCarry,
    ComputeHead,
    GatherLogits,
    BindKvLayout,
    Cse,
    Canonicalize,
)
"""From a configuration to the smallest program that computes it."""

PLANNING: tuple[type[Pass], ...] = (
    FormKernels,
    TuneLaunches,
    AssignLayouts,
    SpecializeBuckets,
    PlanMemory,
    PlanGraphs,
)
"""From a program to launches, addresses and graphs."""

BACK: tuple[type[Pass], ...] = (CheckResources,)
"""After ahead-of-time compilation."""

PASSES: dict[str, type[Pass]] = {step.name: step for step in chain(FRONT, PLANNING, BACK)}
"""Every pass by name."""


def default_passes(loaded: LoadedConfig | None = None) -> list[Pass]:
    """What runs before kernels are compiled, with the options of a configuration."""
    return [_given(step, loaded) for step in (*FRONT, *PLANNING)]


def parse_pipeline(text: str, loaded: LoadedConfig | None = None) -> list[Pass]:
    """Passes from ``name,name{option=value,...}`` (``-p``); what has no options there has those of a configuration.

    Raises:
        ValueError: an unknown pass or option, or a value that does not fit.

    """
    passes: list[Pass] = []
    for name, options in map(parse_item, _split(text)):
        if name not in PASSES:
            raise ValueError(f"no pass named {name!r:.60}; there are {', '.join(PASSES)}")
        step = PASSES[name]
        passes.append(_given(step, loaded) if options is None else step(**parse_options(step, options)))
    return passes


def _given(step: type[Pass], loaded: LoadedConfig | None) -> Pass:
    return step() if loaded is None else step.of(loaded)


def _split(text: str) -> list[str]:
    items, depth = [""], 0
    for char in text:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            items.append("")
        else:
            items[-1] += char
    return [item.strip() for item in items if item.strip()]
