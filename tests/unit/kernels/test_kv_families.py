"""The families that prepare a tree and copy rows: what they cover, how they cut the work, what they assume."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from programs import compile_to, load
from specc.kernels.copying import alignment, programs

from specc.codegen.render import render_kernel
from specc.ir.core import Module, Op
from specc.ir.ops.health import ROOM_BIT
from specc.kernels import FAMILIES
from specc.kernels.shared.base import Spec

OUTPUTS = ["hidden_states", "logprobs", "routed_experts", "indexer_topk", "accept_index"]
TREE: dict[str, Any] = {"topk": 4, "num_draft_tokens": 16, "page_size": 16}
EXTRAS = {"experts_per_token": 2, "index_topk": 8}
VARIANTS: dict[str, dict[str, Any]] = {
    "eagle": {"algorithm": "EAGLE", **TREE},
    "eagle-outputs": {"algorithm": "EAGLE", **TREE, "outputs": OUTPUTS, "target": EXTRAS},
    "eagle-one-step": {"algorithm": "EAGLE", **TREE, "num_steps": 1, "num_draft_tokens": 5},
    "eagle-no-overlap": {"algorithm": "EAGLE", **TREE, "overlap": False, "page_size": 1},
    "standalone": {"algorithm": "STANDALONE", **TREE},
    "standalone-one-step": {"algorithm": "STANDALONE", **TREE, "num_steps": 1, "num_draft_tokens": 2},
}


def module(variant: str) -> Module:
    """A variant before kernels are formed."""
    return compile_to("canonicalize", load(**VARIANTS[variant]))


def clusters(module: Module, stem: str) -> list[tuple[tuple[Op, ...], Spec]]:
    """What a family offers, with specs."""
    family = FAMILIES[stem]
    return [(cluster, family.spec(module, stem, cluster)) for cluster in family.candidates(module)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_prepare_is_one_launch_and_the_tail_another(variant: str) -> None:
    tree = module(variant)
    ((prepare, spec),) = clusters(tree, "prepare")
    tails = [op for cluster, _ in clusters(tree, "duplicate_tail") for op in cluster]
    assert {*prepare, *tails} == set(tree.phases["prepare"])
    assert len(prepare) + len(tails) == len(tree.phases["prepare"])
    paged = VARIANTS[variant]["page_size"] > 1 and VARIANTS[variant].get("num_steps") != 1
    assert [op.opcode for op in tails] == ["kv.duplicate_tail"] * paged
    assert spec.flags["chain_root"] == ()
    assert spec.flags["runs"] == (() if VARIANTS[variant].get("num_steps") == 1 else ("draft_slots",))
    assert spec.flags["given"] != VARIANTS[variant].get("overlap", True)
    # Every result is somewhere in memory for others, none is passed twice.
    passed = [argument.value for argument in spec.arguments if argument.value is not None]
    assert len(passed) == len(set(passed))
    results = {value for op in prepare for value in op.results}
    carried = {op.result for op in prepare if op.opcode == "carry.load" and op.attrs["field"] == "hidden"}
    (admit,) = [op for op in prepare if op.opcode == "kv.admit"]
    assert admit.results[0] in set(passed)
    inside = {admit.results[2], admit.operands[2], *(op.result for op in prepare if op.opcode == "health.clear")}
    assert results - set(passed) == carried | inside & results
    bound = {argument.name: argument for argument in spec.arguments}["columns"]
    assert (bound.size, bound.axis) == ("req_to_token", 1)
    constants = dict(spec.constants)
    assert (constants["WINDOW"], constants["LONGEST"]) == (admit.attrs["window"], -1)
    assert constants["HEALTH_BIT"] == 1 << ROOM_BIT


@pytest.mark.parametrize("variant", VARIANTS)
def test_compact_is_all_that_verification_does_not_compute(variant: str) -> None:
    tree = module(variant)
    ((cluster, spec),) = clusters(tree, "compact")
    copied = [op.operands[0].source for op in cluster if op.opcode == "commit.compact"]
    assert {source.opcode for source in copied if source is not None} <= {"model.target"}
    others = [op for op in tree.find("commit.compact") if op not in cluster]
    elsewhere = {source.opcode for op in others if (source := op.operands[0].source) is not None}
    assert elsewhere == {"verify.greedy"} | ({"vocab.logprob"} if "outputs" in VARIANTS[variant] else set())
    assert [op.opcode for op in cluster].count("kv.move") == 1
    assert [spec.flags[f"value{number}"] for number in range(4)].count(True) == len(copied)
    assert len(copied) == (3 if "outputs" in VARIANTS[variant] else int(variant.startswith("eagle")))


def test_a_chain_copies_nothing() -> None:
    chain = compile_to("canonicalize", load("EAGLE", outputs=["hidden_states"]))
    assert clusters(chain, "compact") == []
    assert clusters(chain, "duplicate_tail") == []
    ((_, spec),) = clusters(chain, "prepare")
    assert (spec.flags["chain_root"], spec.flags["chain_drafts"]) == (("bonus",), ("topk_index",))
    assert {("K", 1), ("PAGE_draft_slots", 1), ("ROOM_draft_slots", 0)} <= set(spec.constants)


def test_more_values_than_a_launch_has_take_another() -> None:
    tree = module("eagle-outputs")
    compact = next(op for op in tree.find("commit.compact") if op.result.name == "path_hidden")
    for copy in range(3):
        results = [(f"copy{copy}", compact.result.type)]
        tree.add_op("commit", "commit.compact", compact.operands, results, {}, None)
    (first, one), (second, two) = clusters(tree, "compact")
    assert (len(first), len(second)) == (5, 2)
    assert (one.flags["move"], two.flags["move"]) == (True, False)
    assert [two.flags[f"value{number}"] for number in range(4)] == [True, True, False, False]
    assert [argument.name for argument in two.arguments[:2]] == ["accept_index_ptr", "value0_ptr"]
    assert FAMILIES["compact"].grid(tree, second, 4) == (4, 2 * 1, 1)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stem", ["prepare", "compact", "duplicate_tail"])
def test_sources_take_what_declarations_pass(variant: str, stem: str) -> None:
    for _, spec in clusters(module(variant), stem):
        tree = ast.parse(render_kernel(stem, spec.flags, []))
        (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
        declared = [argument.name for argument in spec.arguments] + [name for name, _ in spec.constants]
        assert [argument.arg for argument in function.args.args] == declared


@pytest.mark.parametrize("stem", ["compact", "duplicate_tail"])
def test_work_is_shared_by_as_many_programs_as_help(stem: str) -> None:
    """One per piece while there are few, all within two waves when there are many; the batch decides nothing else."""
    few = module("eagle")
    large = {"num_layers": 80, "num_kv_heads": 8, "head_dim": 128}
    many = compile_to("canonicalize", load("EAGLE", **{**TREE, "buckets": [64]}, target=large, draft=large))
    for tree, most in ((few, 16), (many, 4000)):
        ((cluster, _),) = clusters(tree, stem)
        sizes = [FAMILIES[stem].grid(tree, cluster, batch)[1] for batch in (1, 2, 8, 64, 512)]
        assert sizes == sorted(sizes, reverse=True)
        assert 1 <= sizes[-1] <= sizes[0] <= most
        assert sizes[0] >= (160 if tree is many else 4)


def test_programs() -> None:
    assert [programs(pieces, 1) for pieces in (0, 1, 7, 10**6)] == [0, 1, 7, 1848]
    assert [programs(100, batch) for batch in (1, 64, 10**4)] == [100, 29, 1]


@pytest.mark.parametrize(
    ("target", "row", "unit", "align"),
    [
        ({"num_kv_heads": 8, "head_dim": 128}, 2048, 8, 16),
        ({"num_kv_heads": 8, "head_dim": 128, "kv_dtype": "float8_e4m3fn"}, 1024, 8, 16),
        ({"kv_layout": "mla", "num_kv_heads": 1, "head_dim": 576}, 1152, 8, 16),
        ({"num_kv_heads": 1, "head_dim": 20}, 40, 8, 8),
        ({"num_kv_heads": 3, "head_dim": 6}, 36, 4, 4),
        ({"num_kv_heads": 1, "head_dim": 7}, 14, 2, 2),
        ({"num_kv_heads": 1, "head_dim": 7, "kv_dtype": "float8_e5m2"}, 7, 1, 1),
    ],
)
def test_units_of_kv_rows(target: dict[str, Any], row: int, unit: int, align: int) -> None:
    tree = compile_to(
        "canonicalize", load("EAGLE", **TREE, target={"dtype": "bfloat16", **target}, draft={"dtype": "bfloat16"})
    )
    ((_, spec),) = clusters(tree, "compact")
    known = dict(spec.constants)
    assert (known["KV_ROW"], known["KV_UNIT"], known["KV_ALIGN"]) == (row, unit, align)
    assert known["KV_BUFFERS"] == (2 if "kv_layout" in target else 4)
    assert alignment(row) == align


@pytest.mark.parametrize(("experts", "row", "unit"), [(1, 8, 4), (2, 16, 8), (3, 24, 4), (4, 32, 8)])
def test_units_of_values(experts: int, row: int, unit: int) -> None:
    """Experts i32[B, N, layers, k]: as wide as the last axis allows, which is all that is known of a forward's rows."""
    target = {"experts_per_token": experts}
    tree = compile_to("canonicalize", load("STANDALONE", **TREE, outputs=["routed_experts"], target=target))
    ((_, spec),) = clusters(tree, "compact")
    assert (dict(spec.constants)["ROW0"], dict(spec.constants)["UNIT0"]) == (row, unit)
