"""Which launch computes which op of programs: the rules of form-kernels."""

from __future__ import annotations

from typing import Any

import pytest
from formed import FORMS, TREE, formed, grid_of, launches, small, spec_of

from specc.compiler.ir.core import PHASES, Module, Op, entry_of
from specc.compiler.ir.declarations import Kernel
from specc.compiler.ir.nodes import is_external, node_order, quotient
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS, has
from specc.compiler.kernels.writing.family import CAPACITY, cluster_of


@pytest.mark.parametrize(("algorithm", "form"), FORMS)
def test_every_reduction_is_a_launch_and_nothing_waits_for_what_is_later(algorithm: str, form: dict[str, Any]) -> None:
    module = formed(algorithm, **form, page_size=4)
    by_kernel = launches(module)
    assert all(sum(code in ("vocab.argmax", "vocab.topk") for code in codes) <= 1 for codes in by_kernel.values())
    for kernel, codes in by_kernel.items():
        reduces = {"argmax": "vocab.argmax", "topk": "vocab.topk"}
        family = next(decl.family for decl in module.decls_of(Kernel) if decl.name == kernel)
        assert family not in reduces or reduces[family] in codes
    order = node_order(module)
    assert all(order.index(before) < order.index(after) for before, after in quotient(module).edges)


@pytest.mark.parametrize(("algorithm", "form"), FORMS)
def test_launches_of_a_step(algorithm: str, form: dict[str, Any]) -> None:
    """One to begin with, one after every forward, and those that move keys and values or rows along the path.

    One scores a draft that knows the one before, and chooses it where one is kept. One more puts all of these into the
    chain; where several are kept, one ranks them behind each.
    """
    module = formed(algorithm, **form, page_size=4)
    step = [kernel for kernel in module.decls_of(Kernel) if entry_of(kernel.phase) == "step"]
    forwards = [op for op in module.ops("step") if is_external(op) and any(True for _ in logits_of(module, op))]
    moves = [kernel for kernel in step if kernel.family in ("compact", "stash", "duplicate_tail", "ngram_propose")]
    told = [*module.find("head.biased_part", "head.biased")]
    merges = len(told) if form is TREE else bool(told)
    assert len(step) == 1 + len(forwards) + len(moves) + len(told) + merges
    assert step[0].name == "prepare_rows"
    assert len({kernel.family for kernel in moves}) == len(moves)


def logits_of(module: Module, op: Op) -> list[Op]:
    """The reductions that read a forward."""
    users = [user for value in op.results for user in module.users(value)]
    return [user for user in users if user.opcode in ("vocab.argmax", "vocab.topk")]


@pytest.mark.parametrize(("algorithm", "form"), FORMS)
def test_stores_come_after_loads_and_late(algorithm: str, form: dict[str, Any]) -> None:
    """No field is stored by a launch before the last that reads it; none by a launch of a later phase."""
    module = formed(algorithm, **form)
    order = node_order(module)
    for store in (op for op in module.ops("step") if OPS[op.opcode].effect == "carry"):
        place = order.index(str(store.attrs["kernel"]))
        loads = [op for op in module.find("carry.load") if op.attrs["field"] == store.attrs["field"]]
        assert all(order.index(str(load.attrs["kernel"])) <= place for load in loads)
        phase = next(decl.phase for decl in module.decls_of(Kernel) if decl.name == store.attrs["kernel"])
        assert PHASES.index(phase) <= PHASES.index(store.phase)


def test_names_are_phase_and_family() -> None:
    module = formed("EAGLE", **TREE, page_size=4)
    assert list(launches(module)) == [
        "prefill_argmax", "prefill_topk", "prepare_rows", "duplicate_tail",
        "draft_topk_0", "draft_topk_1", "draft_topk_2", "verify_argmax", "compact", "extend_topk",
    ]  # fmt: skip


@pytest.mark.parametrize("mask", ["none", "qlen", "bitpacked", "full", "slots"])
def test_a_tree_is_built_where_its_last_step_is_reduced(mask: str) -> None:
    by_kernel = launches(formed("EAGLE", **TREE, mask=mask, context_length=64))
    assert {"tree.grow", "tree.select", "tree.positions"} <= set(by_kernel["draft_topk_2"])
    assert by_kernel["draft_topk_2"].count("health.raise") == 2
    masks = {"none": [], "slots": ["tree.seen_slots"]}.get(mask, ["tree.mask"])
    assert [opcode for opcode in by_kernel["draft_topk_2"] if has(opcode, Trait.MASKS)] == masks


def test_a_tree_of_one_step_begins_the_step() -> None:
    by_kernel = launches(formed("EAGLE", topk=4, num_steps=1, num_draft_tokens=4))
    assert "tree.select" in by_kernel["prepare_rows"]


@pytest.mark.parametrize("result", ["tokens", "scores", "kept", "candidates"])
def test_what_is_read_elsewhere_is_stored_and_changes_no_launch(result: str) -> None:
    def hand_out(module: Module) -> None:
        grow = [op for op in module.phases["draft"] if op.opcode == "tree.grow"][-1]
        module.outputs["watched"] = grow.out(result)

    module = formed("EAGLE", hand_out, **TREE)
    assert launches(module) == launches(formed("EAGLE", **TREE))
    passed = [argument.passed.target for argument in spec_of(module, "draft_topk_2").arguments]
    assert passed.count(module.outputs["watched"].name) == 1
    unwatched = formed("EAGLE", **TREE)
    grow = [op for op in unwatched.phases["draft"] if op.opcode == "tree.grow"][-1]
    others = [argument.passed.target for argument in spec_of(unwatched, "draft_topk_2").arguments]
    assert grow.out(result).name not in others


@pytest.mark.parametrize("outputs", [[], ["accept_index"], ["logprobs"], ["hidden_states", "logprobs"]], ids=str)
@pytest.mark.parametrize("form", [{"num_steps": 4}, TREE], ids=["chain", "tree"])
def test_verification_takes_all_that_follows_from_the_path(form: dict[str, Any], outputs: list[str]) -> None:
    """Everything of the phases verify and commit but what moves or copies forwards' results."""
    module = formed("EAGLE", **form, outputs=outputs)
    cluster = cluster_of(module, "verify_argmax")
    left = [op for op in module.phases["verify"] + module.phases["commit"] if op not in cluster]
    tree = form is TREE
    assert [op.opcode for op in left] == ["model.target", *(["commit.compact", "kv.move"] if tree else [])]
    assert all(op["x"].source is left[0] for op in left if op.opcode == "commit.compact")
    spec = spec_of(module, "verify_argmax")
    assert ("partial_sum_ptr" in [argument.name for argument in spec.arguments]) == ("logprobs" in outputs)


CARRIES = {
    "MULTI_LAYER_EAGLE": {"verify_argmax": ["seq_lens"], "extend_argmax_3": ["bonus", "topk_index"]},
    "FROZEN_KV_MTP": {"verify_argmax": ["bonus", "seq_lens"], "stash": ["hidden"]},
    "DFLASH": {"verify_argmax": ["bonus", "seq_lens"]},
    "NGRAM": {"verify_argmax": ["seq_lens", "text"]},
}


@pytest.mark.parametrize("algorithm", CARRIES)
def test_who_stores_what_is_carried(algorithm: str) -> None:
    """The launch of their phase that makes the last of it; a launch before, where a phase has none of its own."""
    module = formed(algorithm, num_steps=4)
    stored: dict[str, list[str]] = {}
    for op in module.ops("step"):
        if OPS[op.opcode].effect == "carry":
            stored.setdefault(str(op.attrs["kernel"]), []).append(str(op.attrs["field"]))
    assert {kernel: sorted(fields) for kernel, fields in stored.items()} == CARRIES[algorithm]


def test_a_block_becomes_a_chain() -> None:
    module = formed("DFLASH", num_steps=5)
    cluster = cluster_of(module, "draft_argmax")
    assert {op.opcode for op in cluster} == {"vocab.argmax", "chain.join", "health.raise"}
    spec = spec_of(module, "draft_argmax")
    assert spec.scratch[0].shape == (4, 5, dict(spec.constants)["SPLITS"])
    assert grid_of(module, "draft_argmax", 2) == 5
    passed = [argument.passed.target for argument in spec.arguments]
    assert cluster[0].results[0].name not in passed


@pytest.mark.parametrize(("topk", "num_steps", "warps"), [(2, 2, 4), (8, 5, 4), (8, 16, 8), (16, 5, 8), (16, 16, 16)])
def test_warps_grow_with_the_candidates(topk: int, num_steps: int, warps: int) -> None:
    module = formed("EAGLE", topk=topk, num_steps=num_steps, num_draft_tokens=2)
    (select,) = module.find("tree.select")
    assert spec_of(module, str(select.attrs["kernel"])).num_warps == warps
    assert spec_of(module, "prepare_rows").num_warps == 1
    assert spec_of(module, "verify_argmax").num_warps == 4


def test_rows_of_a_full_mask_are_shared() -> None:
    """By no more programs than the tree has rows, and all requests' run at once."""
    keys = {"topk": 4, "num_steps": 1, "num_draft_tokens": 4, "mask": "full", "context_length": 64}
    module = formed("EAGLE", **keys, outputs=[], target={"hidden_size": 64}, draft={"hidden_size": 64})
    (mask,) = module.find("tree.mask")
    kernel = str(mask.attrs["kernel"])
    chunks = grid_of(module, kernel, 1)
    assert chunks >= 1
    alone = small(
        ("tree", ["%parent, %depth = tree.comb(%rows) {steps = 2} : i64[B, N], i64[B, N]"]),
        ("verify", ['%mask = tree.mask(%lens, %parent) {mode = "full", width = 30} : i1[B, 30]']),
        outputs={"mask": "mask", "depth": "depth"},
    )
    assert list(launches(alone)) == ["tree_rows"]
    assert [grid_of(alone, "tree_rows", batch) for batch in (1, 400, 4000)] == [3, CAPACITY // 400, 1]
