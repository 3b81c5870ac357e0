"""Programs of several budgets: what is expected of each, what is carried, and what nobody asks for."""

from __future__ import annotations

from typing import Any

import pytest
from programs import load, planned

from specc.compiler.driver.build import build_program
from specc.compiler.ir.core import Module
from specc.compiler.ir.ops.lattice import CANDIDATES
from specc.compiler.kernels.head import parts_of
from specc.runtime.plan.draft_head import PART_AXIS

EXPECT = "budget.expect"


def modules(algorithm: str = "EAGLE", **keys: Any) -> dict[str, Module]:
    """The module of every shape, by its name."""
    return {str(built.shape): built.module for built in build_program(load(algorithm, **keys)).shapes}


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "DFLASH", "DSPARK", "DFLASH2"])
def test_every_step_with_drafts_says_what_shapes_of_no_more_promise(algorithm: str) -> None:
    built = modules(algorithm, num_steps=[0, 2, 4], budget=[2, 3, "all"])
    found = {name: [op.attrs["shapes"] for op in module.find(EXPECT)] for name, module in built.items()}
    short, long = "0:1, 2:2, 2:3", "0:1, 2:2, 2:3, 4:2, 4:3, 4:5"
    assert found == {"4": [long], "4b3": [long], "4b2": [long], "2": [short], "2b2": [short], "0": []}
    kernels = {name: [op.attrs["kernel"] for op in module.find(EXPECT)] for name, module in built.items()}
    assert kernels["4"] == kernels["2"] == ["budget_expect"]
    assert kernels["4b3"] == kernels["4b2"] == kernels["2b2"] == ["budget_take"], "a launch that there is anyway"


def test_what_requests_have_accepted_is_carried_at_all_shapes() -> None:
    plans = planned("EAGLE", num_steps=[0, 2, 4], budget=[3, "all"])
    assert all("agreement" in plan.carry for plan in plans)
    places = {plan.buffers["relay.agreement"].offset for plan in plans}
    assert len(places) == 1


@pytest.mark.parametrize("keys", [{"num_steps": 4, "budget": 3}, {"num_steps": [2, 4]}])
def test_nobody_asks_where_there_is_no_choice(keys: dict[str, Any]) -> None:
    assert not [op for module in modules(**keys).values() for op in module.find(EXPECT)]


@pytest.mark.parametrize("budget", [2, 3])
def test_parts_of_a_head_are_no_rows_of_a_budget(budget: int) -> None:
    """A head that the program computes is cut into parts by the size of its vocabulary alone."""
    draft = {"head": "weights", "logits_dtype": "float32", "vocab_size": 32000}
    models = {"draft": draft, "target": {"vocab_size": 32000}}
    (plan,) = planned("STANDALONE", num_steps=3, budget=budget, **models)
    (plain,) = planned("STANDALONE", num_steps=3, **models)
    (parts,) = {kernel.constants["PARTS"] for kernel in plan.kernels.values() if kernel.family == "head"}
    assert parts == parts_of(32000, "f32") == plain.dims[PART_AXIS] == plan.dims[PART_AXIS] > budget
    assert plan.shape.budget == budget


def test_parts_of_a_head_are_no_candidates() -> None:
    """A place of a block has as many as the draft says, however its head is cut."""
    draft = {"head": "weights", "logits_dtype": "float32", "vocab_size": 32000, "selector_top_k": 3}
    (plan,) = planned("DFLASH2", num_steps=3, draft=draft, target={"vocab_size": 32000})
    assert (plan.dims[CANDIDATES], plan.dims[PART_AXIS]) == (3, parts_of(32000, "f32"))
