"""prepare, extend_stash and stash: what of a step's carry each of them takes, for any fields and whoever reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from programs import compile_to, load

from specc.algorithms import names, needs
from specc.ir.builder import Builder
from specc.ir.core import Carry, Module, Op, tensor_type
from specc.ir.infer import assign_types
from specc.ir.types import Dim, TensorType
from specc.kernels import FAMILIES
from specc.kernels.shared.base import Cluster, Spec, convex, in_order, read_in_place, traffic

TREE: dict[str, Any] = {"topk": 4, "num_steps": 4, "num_draft_tokens": 9}
FORMS = [(name, form) for name in names() for form in ({"num_steps": 4}, TREE) if form is not TREE or needs(name).trees]


def lowered(algorithm: str, **keys: Any) -> Module:
    """A module before kernels are formed."""
    return compile_to("canonicalize", load(algorithm, **keys))


def offers(module: Module, stem: str) -> list[tuple[Cluster, Spec]]:
    """What a family offers, with specs."""
    family = FAMILIES[stem]
    return [(cluster, family.spec(module, stem, cluster)) for cluster in family.candidates(module)]


def stores(module: Module, phase: str) -> dict[str, Op]:
    """The stores of a phase, by field."""
    return {str(op.attrs["field"]): op for op in module.phases[phase] if op.opcode in ("carry.store", "relay.publish")}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("algorithm", "form"), FORMS)
def test_every_step_begins_with_one_launch(algorithm: str, form: dict[str, Any], overlap: bool) -> None:
    """All of prepare but moves of KV rows and what is read where it is carried; what only prepare reads stays in it."""
    module = lowered(algorithm, **form, overlap=overlap, page_size=4)
    ((cluster, spec),) = offers(module, "prepare")
    left = [op for op in module.phases["prepare"] if op not in cluster]
    assert all(op.opcode == "kv.duplicate_tail" or read_in_place(module, op) for op in left)
    assert [op.attrs["field"] for op in left if op.opcode == "carry.load"] == (["text"] if algorithm == "NGRAM" else [])
    passed = {argument.value for argument in spec.arguments if argument.value is not None}
    read = {value for op in cluster for value in op.results if any(user not in cluster for user in module.users(value))}
    assert {value for op in cluster for value in op.results} & passed == read
    assert spec.flags["given"] != overlap
    assert spec.flags["length"] == (("seq_lens",) if overlap else ())


def test_what_others_read_in_the_pool_is_loaded_for_anyone_else() -> None:
    module = lowered("NGRAM")
    (load_,) = [op for op in module.find("carry.load") if op.attrs["field"] == "text"]
    assert read_in_place(module, load_)
    module.outputs["text"] = load_.result
    ((cluster, spec),) = offers(module, "prepare")
    assert load_ in cluster
    assert (spec.flags["wide"], spec.flags["kept_wide"]) == (("text",), ("text",))


def test_lengths_of_two_kinds_are_not_mixed() -> None:
    """Slots for lengths that another op of the phase computes are left to others."""
    module = lowered("STANDALONE")
    (lens,) = [op.results[1] for op in module.find("kv.admit")]
    advanced = module.add_op(
        "prepare", "kv.positions", [lens], [("later", None)], {"axis": "", "offset": 4, "stride": 0}, None
    )
    assign_types(module, advanced)
    module.outputs["later"] = advanced.result
    position = module.add_op(
        "prepare", "kv.positions", [advanced.result], [("far", None)], {"axis": "K", "offset": 0, "stride": 1}, None
    )
    assign_types(module, position)
    ((cluster, _),) = offers(module, "prepare")
    assert advanced in cluster
    assert position not in cluster


@pytest.mark.parametrize(("algorithm", "form"), FORMS)
def test_stash_offers_every_way_to_share_the_stores_of_a_phase(algorithm: str, form: dict[str, Any]) -> None:
    """Every store is in the offer of all of its phase; whoever makes a value can be left alone with its stores."""
    module = lowered(algorithm, **form)
    copied = [frozenset(op for op in cluster if op.opcode != "commit.last") for cluster, _ in offers(module, "stash")]
    found = [ops for ops in copied if ops]
    assert len(found) == len(set(found))
    for phase in module.phases:
        ops = set(stores(module, phase).values())
        assert not ops or ops in found
        for maker in {op.operands[1].source for op in ops if op.operands[1].source is not None}:
            rest = {op for op in ops if op.operands[1].source is not maker}
            if rest and maker.opcode != "commit.last" and not maker.opcode.startswith("model."):
                assert rest in found


def module_of(width: int) -> tuple[Module, Builder]:
    """A module with rows and one field f32[B, width]; and a builder for its phase extend."""
    module = Module("small")
    module.dims |= {"B": Dim("B", "request", 4, dynamic=True), "K": Dim("K", "branch", 1), "A": Dim("A", "path", 3)}
    module.dims |= {"P": Dim("P", "pool", 9), "V": Dim("V", "vocab", 50)}
    module.add_input("req_pool_indices", TensorType("i64", ("B",)))
    module.carries["state"] = Carry("state", TensorType("f32", ("B", width)))
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
    ((cluster, spec), (alone, spec_alone)) = offers(module, "stash")
    assert (cluster, alone) == ((last, store), (last,))
    assert spec.flags == {"copied": (), "last": ("state",), "kept": ()}
    assert spec_alone.flags == {"copied": (), "last": (), "kept": ("last",)}
    module.outputs["last"] = last.result
    ((cluster, spec), _) = offers(module, "stash")
    assert spec.flags == {"copied": (), "last": ("state",), "kept": ("last",)}
    assert FAMILIES["stash"].grid(module, cluster, 3) == (3, 2, 1)


def test_a_last_row_that_a_later_store_waits_for_is_a_launch_of_its_own() -> None:
    """Where another op reads the row and what it gives is stored too, one launch cannot do both."""
    module, b = module_of(6)
    rows = module.inputs["req_pool_indices"]
    module.carries = {name: Carry(name, TensorType("i64", ("B",))) for name in ("state", "later")}
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
    assert not convex(module, in_order(module, [op, *both]))
    assert [cluster for cluster, _ in offers(module, "stash")] == [tuple(both), (op, both[0]), (op,)]


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
    module.carries["ring"] = Carry("ring", TensorType("i32", ("B", 4096)))
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
    ((cluster, spec),) = offers(module, "prepare")
    wide = width > 128
    assert spec.flags["kept_wide" if wide else "kept_vectors"] == ("state",)
    assert FAMILIES["prepare"].grid(module, cluster, 3) == (3, 1 + (-(-width // 1024) if wide else 0), 1)


def extend_phase(module: Module, b: Builder) -> Op:
    """An argmax in extend whose index and a state are stored; gives the argmax."""
    module.carries["token"] = Carry("token", TensorType("i64", ("B", "K")))
    rows = module.inputs["req_pool_indices"]
    logits = module.add_input("logits", TensorType("f32", ("B", "V")))
    health = module.add_input("health", TensorType("i32", ("B",)))
    with b.phase("extend"):
        index, bad = b.many("vocab.argmax", logits, rows, dtype="i64", keep="K")
        after = b("health.raise", health, bad, bit=2, names=("health_after",))
        for op in module.phases["extend"]:
            assign_types(module, op)
        b.many("carry.store", rows, index, field="token")
        b.many("carry.store", rows, module.add_input("value", module.carries["state"].type), field="state")
    module.outputs["health"] = after
    assert index.source is not None
    return index.source


def test_a_reduction_that_only_the_carry_reads_is_stored_where_it_is_made() -> None:
    module, b = module_of(300)
    argmax = extend_phase(module, b)
    ((cluster, spec),) = offers(module, "extend_stash")
    assert set(cluster) == set(module.phases["extend"])
    assert {name: spec.flags[name] for name in ("index", "narrow", "wide")} == {
        "index": ("token",),
        "narrow": (),
        "wide": ("state",),
    }
    module.outputs["index"] = argmax.results[0]
    assert not offers(module, "extend_stash")


def test_what_waits_for_the_reduction_is_not_stored_with_it() -> None:
    """A second reduction raises health after the first: its result cannot be stored by the launch of the first."""
    module, b = module_of(300)
    first = extend_phase(module, b)
    module.carries["second"] = Carry("second", TensorType("i64", ("B", "K")))
    rows, logits = first.operands[1], module.add_input("others", tensor_type(first.operands[0]))
    (raised,) = module.find("health.raise")
    with b.phase("extend"):
        index, bad = b.many("vocab.argmax", logits, rows, dtype="i64", keep="K", names=("second", "second_bad"))
        after = b("health.raise", raised.result, bad, bit=2, names=("health_last",))
        for op in (index.source, after.source):
            assert op is not None
            assign_types(module, op)
        b.many("carry.store", rows, index, field="second")
    module.outputs["health"] = after
    clusters = [cluster for cluster, _ in offers(module, "extend_stash")]
    assert all(convex(module, cluster) for cluster in clusters)
    assert {op for cluster in clusters for op in cluster if op.opcode == "vocab.argmax"} <= {first, index.source}


def test_units_follow_from_the_last_axis() -> None:
    """Rows of a [B, 3, 2] f32 field are copied in units of 8 bytes, of [B, 3] ones in units of 4."""
    module, b = module_of(6)
    rows = module.inputs["req_pool_indices"]
    module.carries["state"] = replace(module.carries["state"], type=TensorType("f32", ("B", 3, 2)))
    module.carries["flat"] = Carry("flat", TensorType("f32", ("B", 3)))
    with b.phase("commit"):
        for field, carry in list(module.carries.items()):
            b.many("carry.store", rows, module.add_input(f"{field}_value", carry.type), field=field)
    ((_, spec),) = offers(module, "stash")
    known = dict(spec.constants)
    assert (known["ROW_state"], known["UNIT_state"]) == (24, 8)
    assert (known["ROW_flat"], known["UNIT_flat"]) == (12, 4)
