"""Kernel families: what they cover, and that declaration and rendered source agree on every argument."""

from __future__ import annotations

import ast
from collections import Counter
from math import prod
from typing import Any

import pytest
from programs import ROOT, compile_to, load

from specc.build import build_program
from specc.ir.core import Module, is_state
from specc.ir.nodes import is_external
from specc.ir.plan import Kernel
from specc.ir.types import TensorType
from specc.kernels import FAMILIES
from specc.kernels.argmax import block, splits
from specc.kernels.shared.base import MAX_SPLITS, cluster_of, nbytes, traffic

VARIANTS: list[dict[str, Any]] = [
    {"algorithm": "STANDALONE"},
    {"algorithm": "STANDALONE", "overlap": False, "num_steps": 1},
    {"algorithm": "STANDALONE", "outputs": ["accept_index", "hidden_states"]},
    {"algorithm": "EAGLE"},
    {"algorithm": "EAGLE", "overlap": False, "outputs": ["accept_index"]},
    {"algorithm": "EAGLE", "num_steps": 1},
    {"algorithm": "EAGLE", "outputs": ["logprobs"]},
    {"algorithm": "EAGLE", "draft_positions": "true"},
]
IDS = ["-".join(str(value) for value in variant.values()) for variant in VARIANTS]


@pytest.fixture(params=VARIANTS, ids=IDS, scope="module")
def module(request: pytest.FixtureRequest) -> Module:
    """A clustered and laid out module of each variant."""
    return compile_to("assign-layouts", load(**request.param))


def test_every_family_has_its_two_files() -> None:
    stems = {path.name.removesuffix(".py.jinja") for path in (ROOT / "templates" / "kernels").glob("*.py.jinja")}
    assert stems == set(FAMILIES)
    for stem, family in FAMILIES.items():
        assert family.stem == stem
        assert type(family).__module__ == f"specc.kernels.{stem}"


def test_every_op_is_covered_once(module: Module) -> None:
    clusters = [cluster_of(module, kernel.name) for kernel in module.decls_of(Kernel)]
    covered = Counter(op for cluster in clusters for op in cluster)
    assert set(covered.values()) == {1}
    assert set(covered) == {op for op in module.ops() if not is_external(op)}
    assert all(not is_state(value) for op in covered for value in op.operands)


def test_grids_start_with_the_batch(module: Module) -> None:
    for kernel in module.decls_of(Kernel):
        for batch in (1, 3, 64):
            grid = FAMILIES[kernel.family].grid(module, cluster_of(module, kernel.name), batch)
            assert grid[0] == batch
            assert grid[1] >= 1
            assert grid[2] == 1


def test_specs(module: Module) -> None:
    """One binding per argument; one constant and one argument per name; scratch is named after the kernel."""
    for kernel in module.decls_of(Kernel):
        spec = FAMILIES[kernel.family].spec(module, kernel.name, cluster_of(module, kernel.name))
        names = [argument.name for argument in spec.arguments] + [name for name, _ in spec.constants]
        assert len(set(names)) == len(names)
        for argument in spec.arguments:
            ways = (argument.buffer, argument.input, argument.stride, argument.size)
            bound = [argument.value, argument.literal, *(way or None for way in ways)]
            assert sum(way is not None for way in bound) == 1, argument.name
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
    found = {rows: splits(module, argmax, rows) for rows in (1, 4, 8, 64, 132, 512, 4096)}
    assert all(1 <= count <= min(MAX_SPLITS, tiles) for count in found.values())
    assert found[1] >= found[64] >= found[4096]
    assert found[1] > 1 or tiles == 1


@pytest.mark.parametrize("topk", [1, 2, 3, 8, 16])
def test_no_grid_has_more_splits_than_scratch(topk: int) -> None:
    """Whatever occupies the GPU best, a program has room for its partial results; a few long rows would take more."""
    model = {"vocab_size": 256000, "dtype": "bfloat16"}
    tree = {"topk": topk, "num_draft_tokens": 8} if topk > 1 else {}
    module = compile_to("form-kernels", load("EAGLE", target=model, draft=model, num_steps=3, **tree))
    for kernel in module.decls_of(Kernel):
        family, cluster = FAMILIES[kernel.family], cluster_of(module, kernel.name)
        spec = family.spec(module, kernel.name, cluster)
        partials = [scratch.shape for scratch in spec.scratch if scratch.name.endswith(("_value", "_sum"))]
        for shape in partials:
            splits = dict(spec.constants)["SPLITS"]
            assert splits == shape[-1]
            assert splits & (splits - 1) == 0  # a block of lanes combines them
            for batch in (1, 2, 3, 4):
                assert family.grid(module, cluster, batch)[1] <= prod(shape[1:])


def test_traffic_is_what_the_ops_touch() -> None:
    """draft_step of 4 rows of 96 f32: logits, rows, health and tokens in; health, tokens, token and positions out."""
    module = compile_to("form-kernels", load("STANDALONE", num_steps=3, buckets=[4]))
    cluster = cluster_of(module, "draft_step_0")
    logits, rows, health, tokens, token, positions = 4 * 96 * 4, 4 * 8, 4 * 4, 4 * 4 * 8, 4 * 8, 4 * 8
    assert traffic(module, cluster) == logits + rows + 2 * health + 2 * tokens + token + 2 * positions


def test_bytes_of_types() -> None:
    module = compile_to("form-kernels", load("EAGLE", buckets=[4]))
    assert nbytes(module, TensorType("bf16", ("B", "A", 64))) == 4 * 4 * 64 * 2
    assert nbytes(module, TensorType("f32", ("T", 64))) == 0
