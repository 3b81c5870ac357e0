"""What a step loads and stores of its carry: by which launch, in which units, for any fields and whoever reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from programs import compile_to, load

from specc.compiler.algorithms import names, needs
from specc.compiler.ir.builder import Builder
from specc.compiler.ir.core import CarriedValue, Module, Op
from specc.compiler.ir.declarations import Kernel
from specc.compiler.ir.infer import assign_types
from specc.compiler.ir.types import Dim, TensorType
from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.groups import NodeOrder, waiting
from specc.compiler.kernels.writing.blocks import is_long
from specc.compiler.kernels.writing.family import Cluster, Spec, cluster_of, in_order, leaves, read_in_place
from specc.compiler.kernels.writing.traffic import traffic
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.form_kernels import FormKernels

TREE: dict[str, Any] = {"topk": 4, "num_steps": 4, "num_draft_tokens": 9}
FORMS = [(name, form) for name in names() for form in ({"num_steps": 4}, TREE) if form is not TREE or needs(name).trees]


def lowered(algorithm: str, **keys: Any) -> Module:
    """A module before kernels are formed."""
    return compile_to("canonicalize", load(algorithm, **keys))


def formed(algorithm: str, **keys: Any) -> Module:
    """A module with its kernels."""
    return compile_to("form-kernels", load(algorithm, **keys))


def kernels(module: Module, stem: str) -> list[tuple[Cluster, Spec]]:
    """The step's kernels of a family."""
    of_family = [cluster_of(module, kernel.name) for kernel in module.decls_of(Kernel) if kernel.family == stem]
    return [(ops, FAMILIES[stem].spec(module, stem, ops)) for ops in of_family if ops[0].phase != "prefill"]


def offers(module: Module, stem: str) -> list[tuple[Cluster, Spec]]:
    """What a family offers, with specs."""
    family = FAMILIES[stem]
    return [(cluster, family.spec(module, stem, cluster)) for cluster in family.candidates(module)]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("algorithm", "form"), FORMS)
def test_every_step_begins_with_one_launch(algorithm: str, form: dict[str, Any], overlap: bool) -> None:
    """All of prepare but moves of KV rows and what is read where it is carried; what only prepare reads stays in it."""
    module = formed(algorithm, **form, overlap=overlap, page_size=4)
    ((cluster, spec), *later) = kernels(module, "rows")
    assert all(op.phase == "draft" for made, _ in later for op in made)
    left = [op for op in module.phases["prepare"] if op not in cluster]
    assert all(op.opcode == "kv.duplicate_tail" or read_in_place(module, op) for op in left)
    assert [op.attrs["field"] for op in left if op.opcode == "carry.load"] == (["text"] if algorithm == "NGRAM" else [])
    passed = {argument.passed.target for argument in spec.arguments if argument.passed.kind == "value"}
    assert {value.name for op in cluster for value in op.results} & passed == {
        value.name for op in cluster for value in op.results if leaves(module, value, cluster)
    }
    loaded = {argument.passed.target for argument in spec.arguments if argument.passed.kind == "buffer"}
    assert ("relay.seq_lens" in loaded) == overlap
    assert ("seq_lens" in passed) != overlap


def module_of(width: int) -> tuple[Module, Builder]:
    """A module with rows and one field f32[B, width]; and a builder for its phase extend."""
    module = Module("small")
    module.dims |= {"B": Dim("B", "request", 4, dynamic=True), "K": Dim("K", "branch", 1), "A": Dim("A", "path", 3)}
    module.dims |= {"P": Dim("P", "pool", 9), "V": Dim("V", "vocab", 50)}
    module.add_input("req_pool_indices", TensorType("i64", ("B",)))
    module.carries["state"] = CarriedValue("state", TensorType("f32", ("B", width)))
    return module, Builder(module)


def last_nodes(module: Module, b: Builder, width: int) -> Op:
    """A commit.last of nodes f32[B, A, width]."""
    nodes = module.add_input("nodes", TensorType("f32", ("B", "A", width)))
    index = module.add_input("accept_index", TensorType("i32", ("B", "A")))
    lens = module.add_input("accept_lens", TensorType("i32", ("B",)))
    last = b("commit.last", nodes, index, lens, names=("last",)).source
    assert last is not None
    assign_types(module, last)
    return last


def test_the_last_row_is_not_written_unless_it_is_read() -> None:
    module, b = module_of(6)
    with b.phase("commit"):
        last = last_nodes(module, b, 6)
        b.many("carry.store", module.inputs["req_pool_indices"], last.result, field="state")
    (store,) = module.find("carry.store")
    ((alone, spec_alone), (cluster, spec)) = offers(module, "stash")
    assert (cluster, alone) == ((last, store), (last,))
    assert spec.flags == {"last": ("state",), "kept": ()}
    assert spec_alone.flags == {"last": (), "kept": ("last",)}
    module.outputs["last"] = last.result
    (_, (cluster, spec)) = offers(module, "stash")
    assert spec.flags == {"last": ("state",), "kept": ("last",)}
    assert FAMILIES["stash"].grid(module, cluster, 3) == (3, 2, 1)


def test_ops_are_one_node_unless_something_outside_waits_in_between() -> None:
    """Where another op reads a row and what it gives is stored too, one launch of both stores cannot be."""
    module, b = module_of(6)
    rows = module.inputs["req_pool_indices"]
    module.carries = {name: CarriedValue(name, TensorType("i64", ("B",))) for name in ("state", "later")}
    nodes = module.add_input("nodes", TensorType("i64", ("B", "A")))
    index = module.add_input("accept_index", TensorType("i32", ("B", "A")))
    lens = module.add_input("accept_lens", TensorType("i32", ("B",)))
    with b.phase("commit"):
        last = b("commit.last", nodes, index, lens, names=("last",))
        later = b("kv.positions", last, names=("later",), axis="", offset=1, stride=0)
        b.many("carry.store", rows, last, field="state")
        b.many("carry.store", rows, later, field="later")
        for op in module.phases["commit"]:
            assign_types(module, op)
    (op,), both = module.find("commit.last"), module.find("carry.store")
    waits = waiting(module)
    assert not NodeOrder(waits).merge([op, *both])
    assert NodeOrder(waits).merge([op, both[0]])
    assert NodeOrder(waits).merge(module.phases["commit"])
    nodes = NodeOrder(waits)
    assert nodes.merge([op, both[0]])
    assert not nodes.merge(both)


def test_traffic_counts_rows_that_are_touched() -> None:
    """Of all nodes the last one, of a ring the entries that are new."""
    module, b = module_of(6)
    rows = module.inputs["req_pool_indices"]
    with b.phase("commit"):
        last = last_nodes(module, b, 6)
        b.many("carry.store", rows, last.result, field="state")
    cluster = in_order(module, [last, *module.find("carry.store")])
    # Rows i64, the path i32[B, 3] and its lengths i32 in; a row f32[6] in and out.
    assert traffic(module, cluster) == 4 * (8 + 12 + 4 + 24 + 24)
    module.carries["ring"] = CarriedValue("ring", TensorType("i32", ("B", 4096)))
    lens = module.add_input("lens", TensorType("i64", ("B",)))
    predict = module.add_input("predict", TensorType("i32", ("B", "A")))
    with b.phase("commit"):
        b.many("carry.append", rows, lens, predict, last.operands[2], field="ring")
    assert traffic(module, tuple(module.find("carry.append"))) == 4 * (8 + 8 + 12 + 4 + 12)


@pytest.mark.parametrize("width", [1, 128, 129, 5000])
def test_long_rows_are_cut_into_chunks(width: int) -> None:
    module, b = module_of(width)
    rows = module.inputs["req_pool_indices"]
    with b.phase("prepare"):
        value = b("carry.load", rows, field="state")
        assert value.source is not None
        assign_types(module, value.source)
    module.outputs["state"] = value
    FormKernels().run(module, Context())
    ((cluster, spec),) = kernels(module, "rows")
    wide = width > 128
    assert is_long(module, value.source) == wide
    assert ("copy_row" in spec.imports.get("rows", ())) == wide
    assert FAMILIES["rows"].grid(module, cluster, 3) == (3, -(-width // 1024) if wide else 1, 1)


def test_units_follow_from_the_last_axis() -> None:
    """Rows of a [B, 3, 2] f32 field are copied in units of 8 bytes, of [B, 15] ones in units of 4."""
    module, b = module_of(6)
    rows = module.inputs["req_pool_indices"]
    index = module.add_input("accept_index", TensorType("i32", ("B", "A")))
    lens = module.add_input("accept_lens", TensorType("i32", ("B",)))
    module.carries["state"] = replace(module.carries["state"], type=TensorType("f32", ("B", 3, 2)))
    module.dims["A"] = replace(module.dims["A"], size=300)
    module.carries["flat"] = CarriedValue("flat", TensorType("f32", ("B", 15)))
    with b.phase("commit"):
        for field, carry in list(module.carries.items()):
            nodes = module.add_input(f"{field}_nodes", TensorType("f32", ("B", "A", *carry.type.shape[1:])))
            last = b("commit.last", nodes, index, lens, names=(f"{field}_last",))
            assert last.source is not None
            assign_types(module, last.source)
            b.many("carry.store", rows, last, field=field)
    spec = max((spec for _, spec in offers(module, "stash")), key=lambda spec: len(spec.constants))
    known = dict(spec.constants)
    assert (known["ROW_state"], known["UNIT_state"]) == (24, 8)
    assert (known["ROW_flat"], known["UNIT_flat"]) == (60, 4)
