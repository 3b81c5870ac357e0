"""The families that copy rows of bytes: what they cover, how they cut the work, what they assume."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from programs import compile_to, load

from specc.compiler.codegen.render import render_kernel
from specc.compiler.ir.core import Module, Op
from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.copying import programs
from specc.compiler.kernels.writing.family import Spec, alignment

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
def test_compact_is_all_that_verification_does_not_compute(variant: str) -> None:
    tree = module(variant)
    (cluster, spec), *alone = clusters(tree, "compact")
    assert [ops for ops, _ in alone] == [(op,) for op in cluster]
    copied = [op["x"].source for op in cluster if op.opcode == "commit.compact"]
    assert {source.opcode for source in copied if source is not None} <= {"model.target"}
    others = [op for op in tree.find("commit.compact") if op not in cluster]
    elsewhere = {source.opcode for op in others if (source := op["x"].source) is not None}
    assert elsewhere == {"vocab.argmax"} | ({"vocab.logprob"} if "outputs" in VARIANTS[variant] else set())
    assert [op.opcode for op in cluster].count("kv.move") == 1
    assert spec.flags == {"move": True, "values": len(copied)}
    assert len(copied) == (3 if "outputs" in VARIANTS[variant] else int(variant.startswith("eagle")))


def test_a_chain_copies_nothing() -> None:
    chain = compile_to("canonicalize", load("EAGLE", outputs=["hidden_states"]))
    assert clusters(chain, "compact") == []
    assert clusters(chain, "duplicate_tail") == []


def test_a_launch_copies_any_number_of_values() -> None:
    tree = module("eagle-outputs")
    compact = next(op for op in tree.find("commit.compact") if op.result.name == "path_hidden")
    for copy in range(3):
        results = [(f"copy{copy}", compact.result.type)]
        tree.add_op("commit", "commit.compact", compact.operands, results, {}, None)
    (cluster, spec), *_ = clusters(tree, "compact")
    assert spec.flags == {"move": True, "values": 6}
    names = [argument.name for argument in spec.arguments]
    assert names[5:] == [f"{kind}{number}_ptr" for number in range(6) for kind in ("value", "path")]
    path = [op for op in cluster if op.opcode != "kv.move"]
    alone = FAMILIES["compact"].spec(tree, "compact", tuple(path))
    assert alone.flags == {"move": False, "values": 6}
    assert [argument.name for argument in alone.arguments[:2]] == ["accept_index_ptr", "value0_ptr"]


def test_values_of_two_paths_are_two_launches() -> None:
    tree = module("eagle-outputs")
    compact = next(op for op in tree.find("commit.compact") if op.result.name == "path_hidden")
    second_index = tree.add_input("other_path", compact["accept_index"].type)
    results = [("copy", compact.result.type)]
    tree.add_op("commit", "commit.compact", (compact["x"], second_index), results, {}, None)
    offered = [cluster for cluster, _ in clusters(tree, "compact")]
    assert [len(cluster) for cluster in offered] == [4, 1, 1, 1, 1, 1, 1]
    assert offered[1] == tuple(tree.users(second_index))
    assert all(op["accept_index"] is not second_index for op in offered[0])


def test_a_launch_moves_keys_and_values_once() -> None:
    """A second move along the path reads what the first one wrote."""
    tree = module("standalone")
    (move,) = tree.find("kv.move")
    operands = move["slots"], move["accept_index"], move["accept_lens"], move.result
    again = tree.add_op("commit", "kv.move", operands, [("kv_again", move.result.type)], {}, None)
    assert [cluster for cluster, _ in clusters(tree, "compact")] == [(move,), (move,), (again,)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stem", ["compact", "duplicate_tail"])
def test_sources_take_what_declarations_pass(variant: str, stem: str) -> None:
    for _, spec in clusters(module(variant), stem):
        tree = ast.parse(render_kernel(spec, []))
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
        (cluster, _), *_ = clusters(tree, stem)
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
    (_, spec), *_ = clusters(tree, "compact")
    known = dict(spec.constants)
    assert (known["KV_ROW"], known["KV_UNIT"], known["KV_ALIGN"]) == (row, unit, align)
    assert known["KV_BUFFERS"] == (2 if "kv_layout" in target else 4)
    assert alignment(row) == align


@pytest.mark.parametrize(("experts", "row", "unit"), [(1, 8, 4), (2, 16, 8), (3, 24, 4), (4, 32, 8)])
def test_units_of_values(experts: int, row: int, unit: int) -> None:
    """Experts i32[B, N, layers, k]: as wide as the last axis allows, which is all that is known of a forward's rows."""
    target = {"experts_per_token": experts}
    tree = compile_to("canonicalize", load("STANDALONE", **TREE, outputs=["routed_experts"], target=target))
    (_, spec), *_ = clusters(tree, "compact")
    assert (dict(spec.constants)["ROW0"], dict(spec.constants)["UNIT0"]) == (row, unit)
