"""tree_build: which clusters it offers, and what decides its launch."""

from __future__ import annotations

from typing import Any

import pytest
from programs import compile_to, load

from specc.ir.core import Module, Op
from specc.kernels import FAMILIES
from specc.kernels.shared.base import Cluster

FAMILY = FAMILIES["tree_build"]
TREE = ["tree.select", "health.raise", "tree.positions"]
DRAFTED = ["vocab.topk", "health.raise", "tree.grow"]


def tree(**keys: Any) -> Module:
    """The module of a tree before kernels are formed."""
    return compile_to("canonicalize", load("EAGLE", **{"topk": 4, "num_steps": 3, "num_draft_tokens": 16, **keys}))


def offered(module: Module) -> list[Cluster]:
    """The clusters the family offers."""
    return list(FAMILY.candidates(module))


def opcodes(cluster: Cluster) -> list[str]:
    """The opcodes of a cluster in order."""
    return [op.opcode for op in cluster]


@pytest.mark.parametrize("mask", ["none", "qlen", "bitpacked", "full"])
def test_alone_and_with_the_last_step(mask: str) -> None:
    alone, fused = offered(tree(mask=mask, context_length=64))
    assert opcodes(alone) == TREE + (["tree.mask"] if mask != "none" else [])
    assert opcodes(fused) == DRAFTED + opcodes(alone)


def test_one_step_has_no_forward_to_follow() -> None:
    (alone,) = offered(module := tree(num_steps=1, num_draft_tokens=4))
    assert opcodes(alone) == [*TREE, "tree.mask"]
    assert dict(FAMILY.spec(module, "k", alone).flags)["steps"] == 1


def test_a_chain_has_no_tree() -> None:
    assert offered(compile_to("canonicalize", load("EAGLE"))) == []


def last_grow(module: Module) -> Op:
    """The op that grows the last frontier."""
    return [op for op in module.phases["draft"] if op.opcode == "tree.grow"][-1]


@pytest.mark.parametrize("result", range(4))
def test_what_is_read_elsewhere_is_not_fused(result: int) -> None:
    """The fused kernel stores nothing of the last step, so it is offered only if nothing else reads it."""
    module = tree()
    module.outputs["watched"] = last_grow(module).results[result]
    assert [opcodes(cluster) for cluster in offered(module)] == [[*TREE, "tree.mask"]]


def test_unstored_results_of_a_selection_are_not_covered() -> None:
    module = tree()
    (select,) = module.find("tree.select")
    module.outputs["depth"] = select.results[2]
    assert offered(module) == []


def test_arguments_follow_the_steps() -> None:
    """One of each per step that is in memory; kept of the steps between the first and the last."""
    module = tree(num_steps=5)
    alone, fused = (FAMILY.spec(module, "k", cluster) for cluster in offered(module))
    names = [[argument.name for argument in spec.arguments] for spec in (alone, fused)]
    for kind, counts in (("scores", (5, 4)), ("tokens", (6, 5)), ("kept", (3, 3))):
        assert tuple(sum(name.startswith(kind) for name in found) for found in names) == counts
    assert "frontier_ptr" in names[1]
    assert (alone.flags["steps"], fused.flags["steps"]) == (5, 4)


def test_the_health_word_is_the_last_one() -> None:
    """Both raises of the fused form go to the word that leaves the kernel."""
    module = tree()
    _, fused = offered(module)
    (word,) = [a.value for a in FAMILY.spec(module, "k", fused).arguments if a.name == "health_ptr"]
    assert word is not None
    assert word is [op for op in fused if op.opcode == "health.raise"][-1].result


@pytest.mark.parametrize(("topk", "num_steps", "warps"), [(2, 1, 4), (8, 5, 4), (8, 16, 8), (16, 5, 8), (16, 16, 16)])
def test_warps_grow_with_the_candidates(topk: int, num_steps: int, warps: int) -> None:
    module = tree(topk=topk, num_steps=num_steps, num_draft_tokens=2)
    assert {FAMILY.spec(module, "k", cluster).num_warps for cluster in offered(module)} == {warps}


def test_grids() -> None:
    """One program per request; more to share the rows of a full mask; or those that the top-k takes."""
    alone, fused = offered(module := tree())
    assert [FAMILY.grid(module, alone, batch) for batch in (1, 64)] == [(1, 1, 1), (64, 1, 1)]
    assert FAMILY.grid(module, fused, 2)[1] % module.size("K") == 0
    full, _ = offered(module := tree(mask="full", context_length=64))
    assert [FAMILY.grid(module, full, batch)[1] for batch in (1, 100, 2000)] == [16, 9, 1]
