"""Compositions that no algorithm writes: operands from elsewhere, flags of odd sizes, a mask beside long rows."""

from __future__ import annotations

import pytest
import torch
from cluster_cases import TypedBuilder, check_module, prepared, small_module
from kernel_cases import generator
from kernel_launcher import Launcher

from specc.compiler.ir.core import Module

ROWS = torch.tensor([3, 0, 7])


def launches(module: Module) -> int:
    """In how many launches the ops of a module are."""
    return len({op.attrs["kernel"] for op in module.ops()})


def test_a_tree_of_what_one_launch_has_grown(launcher: Launcher) -> None:
    """All that the last step grew is in registers; of it scores alone are taken from there."""
    module = small_module(K=2, N=6)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    scores, p, index = b.given("scores", "f32", "K"), b.given("p", "f32", "K", "K"), b.given("index", "i64", "K", "K")
    with b.phase("draft"):
        _, best, kept, candidates = b.many("tree.grow", scores, p, index)
        parts = (best, p, p, candidates, b.given("first", "i64", "K"), index, index, index, kept, kept)
        b.hand_out(*b.many("tree.select", rows, b.given("bonus", "i32"), *parts, steps=4))
    check_module(launcher, module, generator(1), {"req_pool_indices": ROWS})
    assert launches(module) == 1


def test_two_trees_of_one_launch_share_no_memory(launcher: Launcher) -> None:
    """Scores that only trees read are in memory of the kernel's own, until the last tree has read them."""
    module = small_module(K=2, N=3)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    bonus, tokens = b.given("bonus", "i32"), b.given("tokens", "i64", "K")
    p, index = b.given("p", "f32", "K", "K"), b.given("index", "i64", "K", "K")
    with b.phase("draft"):
        first = b("tree.gather", b.given("scores", "f32", "K"), b.given("kept", "i64", "K"))
        second = b.many("tree.grow", first, p, index)[1]
        for scores in (first, second, first):
            b.hand_out(*b.many("tree.select", rows, bonus, scores, tokens, steps=1))
    kept = torch.tensor([[0, 3], [2, 1], [3, 3]])
    check_module(launcher, module, generator(2), {"req_pool_indices": ROWS, "kept": kept})
    assert launches(module) == 1


def test_memory_that_a_value_replaces_is_kept_where_nothing_reads_it(launcher: Launcher) -> None:
    """The replacing value is for one tree of the same launch: it has memory of the kernel's own."""
    module = small_module(K=2, N=3)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    at = b.given("at", "i64", "K")
    with b.phase("draft"):
        moved = b("kv.advance", at)
        b.hand_out(*b.many("tree.select", rows, b.given("bonus", "i32"), b.given("scores", "f32", "K"), moved, steps=1))
    memory, launch = prepared(module, {"req_pool_indices": ROWS}, generator(3))
    before = memory.tensors["at"].clone() if "at" in memory.tensors else None
    after = memory.moved(launcher.device, {})
    launch.run(launcher, after)
    assert before is not None
    assert torch.equal(after.tensors["at"].cpu(), before)


@pytest.mark.parametrize("branches", [2, 3, 5])
def test_flags_of_gathered_branches(launcher: Launcher, branches: int) -> None:
    """Past the branches of a block there are none, whichever branch is raised."""
    module = small_module(K=branches)
    b = TypedBuilder(module)
    with b.phase("draft"):
        flags = b("tree.gather", b.given("flags", "i1", "K"), b.given("kept", "i64", "K"))
        b.hand_out(b("health.raise", b.given("health", "i32"), flags, names=("told",), bit=3))
    for flag in range(branches):
        raised = (torch.arange(branches) == flag).repeat(3, 1)
        kept = torch.full((3, branches), (flag + 1) % branches * branches)
        drawn = {"req_pool_indices": ROWS, "flags": raised, "kept": kept, "health": torch.zeros(3, dtype=torch.int32)}
        assert not check_module(launcher, module, generator(4), drawn)["told"].any()


@pytest.mark.parametrize("slots", [2, 3, 5])
def test_flags_along_a_path(launcher: Launcher, slots: int) -> None:
    """Past the path's slots there are none: not the root's either, if it is not on the path."""
    module = small_module(K=2, N=6, A=slots, V=20)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    with b.phase("verify"):
        _, bad = b.many("vocab.argmax", b.given("logits", "f32", "N", "V"), rows, dtype="i32", keep="")
        flags = b("commit.compact", bad, b.given("path", "i32", "A"))
        b.hand_out(b("health.raise", b.given("health", "i32"), flags, names=("told",), bit=3))
    logits = torch.zeros(3, 6, 20)
    logits[:, 0] = torch.nan
    path = torch.arange(3, dtype=torch.int32)[:, None] * 6 + 1
    drawn = {"req_pool_indices": ROWS, "logits": logits, "path": path.repeat(1, slots)}
    drawn["health"] = torch.zeros(3, dtype=torch.int32)
    assert not check_module(launcher, module, generator(5), drawn)["told"].any()


def test_a_chain_of_more_nodes_than_its_path_has_slots(launcher: Launcher) -> None:
    """What the target accepts beyond the path is not accepted."""
    nodes, slots = 5, 3
    module = small_module(K=2, N=nodes, A=slots)
    rows, lens, b = module.inputs["req_pool_indices"], module.inputs["seq_lens"], TypedBuilder(module)
    with b.phase("verify"):
        given = b.given("tokens", "i64", "N"), b.given("targets", "i32", "N")
        predict, path, count = b.many("verify.greedy", *given, rows)
        b.hand_out(predict, path, count, *b.many("commit.lengths", lens, count, path))
    tokens = torch.arange(nodes).repeat(3, 1)
    targets = (tokens + 1).to(torch.int32)
    drawn = {"req_pool_indices": ROWS, "seq_lens": torch.tensor([4, 0, 9]), "tokens": tokens, "targets": targets}
    assert check_module(launcher, module, generator(6), drawn)["accept_lens"].tolist() == [slots, 0, slots]


@pytest.mark.parametrize("width", [300, 9000])
def test_a_flat_mask_beside_long_rows(launcher: Launcher, width: int) -> None:
    """Programs share the rows of the mask, and the chunks of the rows besides; they may be more than either needs."""
    module = small_module(K=2, N=5)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    with b.phase("draft"):
        parent, depth = b.many("tree.comb", rows, steps=2)
        mask = b("tree.mask", module.inputs["seq_lens"], parent, mode="full", width=6 * 5 * 45)
        b.hand_out(parent, depth, mask, b("tree.repeat", b.given("hidden", "f32", width)))
    drawn = {"req_pool_indices": ROWS, "seq_lens": torch.tensor([4, 0, 30])}
    check_module(launcher, module, generator(7), drawn)
    assert launches(module) == 1
