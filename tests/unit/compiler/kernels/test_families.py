"""Kernel families: what they cover, and that declaration and rendered source agree on every argument."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

import pytest
from programs import ROOT, compile_to, load, planned

from specc.compiler.driver.build import build_program
from specc.compiler.ir.core import Module, is_state
from specc.compiler.ir.declarations import Kernel
from specc.compiler.ir.nodes import is_external
from specc.compiler.ir.types import TensorType
from specc.compiler.kernels import COMPOSED, FAMILIES, LONE
from specc.compiler.kernels.formed import specs
from specc.compiler.kernels.writing.family import CAPACITY, MAX_SPLITS, cluster_of, nbytes
from specc.compiler.kernels.writing.traffic import traffic
from specc.compiler.kernels.writing.vocabulary import block, most_splits, rows_of, splits
from specc.runtime.plan.nodes import KINDS, Launch
from specc.runtime.plan.plan import Buffer

TREE: dict[str, Any] = {"topk": 4, "num_draft_tokens": 9}
VARIANTS: list[dict[str, Any]] = [
    {"algorithm": "STANDALONE"},
    {"algorithm": "STANDALONE", "overlap": False, "num_steps": 1},
    {"algorithm": "STANDALONE", "outputs": ["accept_index", "hidden_states"]},
    {"algorithm": "EAGLE"},
    {"algorithm": "EAGLE", "overlap": False, "outputs": ["accept_index"]},
    {"algorithm": "EAGLE", "num_steps": 1},
    {"algorithm": "EAGLE", "outputs": ["logprobs"]},
    {"algorithm": "EAGLE", "draft_positions": "true"},
    {"algorithm": "EAGLE", **TREE},
    {"algorithm": "EAGLE", **TREE, "mask": "full", "context_length": 64, "outputs": ["logprobs", "accept_index"]},
    {"algorithm": "FROZEN_KV_MTP", **TREE},
    {"algorithm": "MULTI_LAYER_EAGLE"},
    {"algorithm": "DFLASH"},
    {"algorithm": "NGRAM", **TREE},
    {"algorithm": "EAGLE", "logits": "sharded", "tensor_parallel": 2},
    {"algorithm": "EAGLE", **TREE, "logits": "sharded", "tensor_parallel": 2},
]
IDS = ["-".join(str(value) for value in variant.values()) for variant in VARIANTS]


@pytest.fixture(params=VARIANTS, ids=IDS, scope="module")
def module(request: pytest.FixtureRequest) -> Module:
    """A clustered and laid out module of each variant."""
    return compile_to("assign-layouts", load(**request.param))


def test_every_family_has_its_files() -> None:
    """A file of its name; a template where nothing is composed, but for cuts and scores, which call one function.

    `groups`, `formed`, `copying` and `committing` are no families: which ops are launched together, whether launches
    are such as these make, and what families share that copy, and that commit states.
    """
    stems = {path.name.removesuffix(".py.jinja") for path in (ROOT / "templates" / "kernels").glob("*.py.jinja")}
    assert stems == set(LONE) - {"cut", "score"} | {"composed"}
    assert FAMILIES.keys() == COMPOSED.keys() | LONE.keys()
    assert {path.stem for path in (ROOT / "specc" / "compiler" / "kernels").glob("[a-z]*.py")} == {
        *FAMILIES,
        "committing",
        "copying",
        "formed",
        "groups",
    }
    for stem, family in FAMILIES.items():
        assert family.stem == stem
        assert type(family).__module__ == f"specc.compiler.kernels.{stem}"


def test_every_op_is_covered_once(module: Module) -> None:
    clusters = [cluster_of(module, kernel.name) for kernel in module.decls_of(Kernel)]
    covered = Counter(op for cluster in clusters for op in cluster)
    assert set(covered.values()) == {1}
    assert set(covered) == {op for op in module.ops() if not is_external(op) and op.opcode != "comm.gather"}
    composed = [op for op in covered if not op.opcode.startswith("kv.")]
    assert all(not is_state(value) for op in composed for value in op.operands)


def test_specs_are_those_of_the_module_as_it_is() -> None:
    """They are made once for all who ask, as long as nothing changes but where memory is."""
    module = compile_to("plan-graphs", load(**TREE))
    before = specs(module)
    clusters = {kernel: cluster_of(module, kernel.name) for kernel in module.decls_of(Kernel)}
    assert before == {k.name: FAMILIES[k.family].spec(module, k.name, ops) for k, ops in clusters.items()}
    module.decls = [replace(decl, offset=0) if isinstance(decl, Buffer) else decl for decl in module.decls]
    assert specs(module) is before
    (raised, *_) = module.find("health.raise")
    raised.attrs["bit"] = 5
    name = str(raised.attrs["kernel"])
    assert specs(module)[name] != before[name]


def test_grids_start_with_the_batch(module: Module) -> None:
    """All of a bucket list at once, as they are planned, are those of each by itself."""
    batches = (1, 3, 64)
    for kernel in module.decls_of(Kernel):
        family, cluster = FAMILIES[kernel.family], cluster_of(module, kernel.name)
        grids = family.grids(module, cluster, batches)
        assert grids == [family.grid(module, cluster, batch) for batch in batches]
        assert [grid[0] for grid in grids] == [*batches]
        assert all(grid[1] >= 1 and grid[2] == 1 for grid in grids)


@pytest.mark.parametrize("shape", [{}, TREE, {"algorithm": "STANDALONE", "buckets": [1, 64]}])
def test_programs_of_a_shard_are_those_that_its_kernel_counts_on(shape: dict[str, Any]) -> None:
    """In every bucket of the plan: a program that lacks leaves a row of the record unwritten."""
    (plan,) = planned(**shape, logits="sharded", tensor_parallel=2)
    nodes = [node for node in plan.nodes() if isinstance(node, Launch)]
    parts = [node for node in nodes if plan.kernels[node.kernel].family in ("argmax_part", "topk_part")]
    assert parts
    for node in parts:
        (call,) = [call for call in node.ops if call.op in ("vocab.argmax_part", "vocab.topk_part")]
        _, _, *axes, _ = plan.values[call.results[0]].axes
        programs = plan.kernels[node.kernel].constants["PROGRAMS"]
        assert {grid[1] for grid in node.grid.values()} == {prod(map(plan.size, axes)) * programs}


def test_specs(module: Module) -> None:
    """One binding per argument; one constant and one argument per name; scratch is named after the kernel."""
    for kernel in module.decls_of(Kernel):
        spec = FAMILIES[kernel.family].spec(module, kernel.name, cluster_of(module, kernel.name))
        names = [argument.name for argument in spec.arguments] + [name for name, _ in spec.constants]
        assert len(set(names)) == len(names)
        for argument in spec.arguments:
            passed = argument.passed
            assert passed.kind in KINDS, argument.name
            assert (passed.target == "") == (passed.literal is not None) == (passed.kind == "literal"), argument.name
        assert all(scratch.name.startswith(f"{kernel.name}.") for scratch in spec.scratch)


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_sources_take_what_declarations_pass(variant: dict[str, Any]) -> None:
    """The parameters of the rendered function are the declared arguments, then the constants as constexpr."""
    for source in build_program(load(**variant)).generated.sources:
        functions = [
            n for n in ast.parse(source.text).body if isinstance(n, ast.FunctionDef) and n.name == source.function
        ]
        (function,) = functions
        parameters = [(arg.arg, ast.unparse(arg.annotation) if arg.annotation else "") for arg in function.args.args]
        constexprs = [name for name, annotation in parameters if "constexpr" in annotation]
        assert [name for name, _ in parameters if name not in constexprs] == [name for name, _ in source.arguments]
        assert sorted(constexprs) == sorted(name for name, _ in source.constants)


def argmax_of(vocab: int, dtype: str = "bfloat16") -> tuple[Module, Any]:
    """A module with this vocabulary and its target's argmax."""
    model = {"vocab_size": vocab, "dtype": dtype}
    module = compile_to("select-verify", load("STANDALONE", target=model, draft=model))
    return module, next(op for op in module.phases["verify"] if op.opcode == "vocab.argmax")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("vocab", [1, 96, 1000, 32000, 128256])
def test_tiles(vocab: int, dtype: str) -> None:
    """A power of two that 128 threads can share, no larger than the row needs."""
    size = block(*argmax_of(vocab, dtype))
    assert size & (size - 1) == 0
    assert 256 <= size <= 4096
    assert size == 256 or size < 2 * vocab


@pytest.mark.parametrize("vocab", [1, 96, 32000, 128256])
def test_splits(vocab: int) -> None:
    """At most one program per tile; a single long row is shared by many, thousands of rows by few."""
    module, argmax = argmax_of(vocab)
    tiles = -(-vocab // block(module, argmax))
    counts = {rows: splits(module, argmax, rows, COMPOSED["argmax"].cost) for rows in (1, 4, 8, 64, 132, 512, 4096)}
    assert all(1 <= count <= min(MAX_SPLITS, tiles) for count in counts.values())
    assert counts[1] >= counts[64] >= counts[4096]
    assert counts[1] > 1 or tiles == 1


def test_kernels_of_more_registers_take_fewer_programs() -> None:
    """What fits on the device at once bounds the waves that are counted."""
    module, argmax = argmax_of(128256)
    counts = [
        splits(module, argmax, 8, COMPOSED["argmax"].cost.within(resident))
        for resident in (132, 264, CAPACITY, 1 << 20)
    ]
    assert counts == sorted(counts)
    assert counts[0] < counts[-2] == counts[-1]


@pytest.mark.parametrize(("nodes", "most"), [(2, 64), (9, 64), (32, 64), (33, 32), (64, 32), (200, 8), (300, 4)])
def test_splits_shrink_with_the_nodes(nodes: int, most: int) -> None:
    """One block of the last arriver holds all partial results: of every grid, and in the scratch."""
    model = {"vocab_size": 128256, "dtype": "bfloat16"}
    tree = {"topk": 8, "num_steps": 6, "num_draft_tokens": nodes}
    module = compile_to("form-kernels", load("EAGLE", **tree, target=model, draft=model))
    cluster = cluster_of(module, "verify_argmax")
    (argmax,) = [op for op in cluster if op.opcode == "vocab.argmax"]
    assert (rows_of(module, argmax), most_splits(module, argmax)) == (nodes, most)
    spec = FAMILIES["argmax"].spec(module, "verify_argmax", cluster)
    assert dict(spec.constants)["SPLITS"] == spec.scratch[0].shape[-1] == most
    for batch in (1, 2, 3, 64):
        rows, programs, _ = FAMILIES["argmax"].grid(module, cluster, batch)
        assert rows == batch
        assert programs % nodes == 0
        assert 1 <= programs // nodes <= most


@pytest.mark.parametrize(("topk", "most"), [(2, 64), (3, 32), (8, 16), (9, 8), (16, 8)])
def test_partial_keys_of_a_row_are_a_block(topk: int, most: int) -> None:
    model = {"vocab_size": 128256}
    module = compile_to("select-verify", load("EAGLE", topk=topk, num_draft_tokens=8, target=model, draft=model))
    assert {most_splits(module, op) for op in module.find("vocab.topk")} == {most}


@pytest.mark.parametrize("topk", [1, 2, 3, 8, 16])
def test_no_grid_has_more_splits_than_scratch(topk: int) -> None:
    """Whatever occupies the GPU best, a program has room for its partial results; a few long rows would take more."""
    model = {"vocab_size": 256000, "dtype": "bfloat16"}
    tree = {"topk": topk, "num_draft_tokens": 8} if topk > 1 else {}
    module = compile_to("form-kernels", load("EAGLE", target=model, draft=model, num_steps=3, **tree))
    for kernel in module.decls_of(Kernel):
        family, cluster = FAMILIES[kernel.family], cluster_of(module, kernel.name)
        spec = family.spec(module, kernel.name, cluster)
        partials = [scratch.shape for scratch in spec.scratch if scratch.name.endswith(("_value", "_sum", "_max"))]
        for shape in partials:
            splits = dict(spec.constants)["SPLITS"]
            assert splits == shape[-1]
            assert splits & (splits - 1) == 0  # a block of lanes combines them
            for batch in (1, 2, 3, 4):
                assert family.grid(module, cluster, batch)[1] <= prod(shape[1:])


def test_traffic_is_what_the_ops_touch() -> None:
    """A draft of 4 rows of 96 f32: logits, rows, health, tokens and positions in; these and the token out."""
    module = compile_to("form-kernels", load("STANDALONE", num_steps=3, buckets=[4]))
    cluster = cluster_of(module, "draft_argmax_0")
    logits, rows, health, tokens, token, positions = 4 * 96 * 4, 4 * 8, 4 * 4, 4 * 4 * 8, 4 * 8, 4 * 8
    assert traffic(module, cluster) == logits + rows + 2 * health + 2 * tokens + token + 2 * positions


def test_bytes_of_types() -> None:
    module = compile_to("form-kernels", load("EAGLE", buckets=[4]))
    assert nbytes(module, TensorType("bf16", ("B", "A", 64))) == 4 * 4 * 64 * 2
    assert nbytes(module, TensorType("f32", ("T", 64))) == 0
