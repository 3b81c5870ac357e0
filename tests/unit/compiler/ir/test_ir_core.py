"""Modules: one graph of def-use edges, of which everything else is a view."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specc.compiler.ir.builder import Builder
from specc.compiler.ir.core import PHASES, CarriedValue, Module, Value, entry_of, is_state, tensor_type
from specc.compiler.ir.declarations import Kernel, Options
from specc.compiler.ir.nodes import on_field
from specc.compiler.ir.types import Dim, StateType, TensorType
from specc.compiler.support.diagnostics import DiagnosticError
from specc.compiler.support.location import Location

I64 = TensorType("i64", ("B",))


def sample() -> tuple[Module, Builder, Value]:
    """A module with one input and two carried values."""
    module = Module("m")
    module.carries |= {name: CarriedValue(name, I64) for name in "ab"}
    return module, Builder(module), module.add_input("rows", I64)


def test_operands_keep_their_order_and_may_repeat() -> None:
    module, b, rows = sample()
    health = b("health.clear", rows)
    b.many("carry.store", rows, rows, field="a")
    b.many("carry.store", rows, health, field="b")
    assert [op.operands for op in module.ops()] == [(rows,), (rows, rows), (rows, health)]


def test_users_are_distinct_and_in_execution_order() -> None:
    module, b, rows = sample()
    with b.phase("extend"):
        last = b("health.clear", rows)
    early = b("health.clear", rows)
    b.many("carry.store", rows, rows, field="a")
    assert [op.phase for op in module.users(rows)] == ["prepare", "prepare", "extend"]
    assert module.users(last) == module.users(early) == []


def test_users_of_one_result_of_several() -> None:
    module, b, rows = sample()
    index, bad = b.many("vocab.argmax", rows, rows, dtype="i32", keep="")
    health = b("health.raise", b("health.clear", rows), bad, bit=1)
    assert module.users(index) == []
    assert [op.results for op in module.users(bad)] == [(health,)]


def test_set_operands_replaces_all_edges() -> None:
    module, b, rows = sample()
    replacement = module.add_input("other", I64)
    (op,) = (b("health.clear", rows).source,)
    assert op is not None
    module.set_operands(op, [replacement])
    assert op.operands == (replacement,)
    assert module.users(rows) == []
    assert module.users(replacement) == [op]


def test_replace_uses_reaches_ops_and_outputs() -> None:
    module, b, rows = sample()
    old, new = b("health.clear", rows, names=("old",)), b("health.clear", rows, names=("new",))
    b.many("carry.store", rows, old, field="a")
    module.outputs = {"x": old, "y": new}
    module.replace_uses(old, new)
    assert module.users(old) == []
    assert module.find("carry.store")[0].operands == (rows, new)
    assert module.outputs == {"x": new, "y": new}


def test_replacing_a_value_by_one_of_its_own_op() -> None:
    module, b, rows = sample()
    index, bad = b.many("vocab.argmax", rows, rows, dtype="i32", keep="")
    b.many("carry.store", rows, index, field="a")
    module.replace_uses(index, bad)
    assert module.find("carry.store")[0].operands == (rows, bad)


def test_an_op_that_is_read_cannot_be_erased() -> None:
    module, b, rows = sample()
    health = b("health.clear", rows)
    b.many("carry.store", rows, health, field="a")
    module.outputs["health"] = health
    assert health.source is not None
    with pytest.raises(ValueError, match=r"health\.clear is still read by carry\.store, output health"):
        module.erase(health.source)
    module.erase(module.find("carry.store")[0])
    with pytest.raises(ValueError, match="output health"):
        module.erase(health.source)
    module.outputs.clear()
    module.erase(health.source)
    assert list(module.ops()) == []
    assert module.users(rows) == []
    assert module.fresh("health") == "health"


def test_names_are_unique() -> None:
    module, b, rows = sample()
    first, second = b("health.clear", rows), b("health.clear", rows)
    assert (first.name, second.name) == ("health", "health_1")
    with pytest.raises(ValueError, match="%rows is defined twice"):
        module.add_input("rows", I64)
    with pytest.raises(ValueError, match="%health is defined twice"):
        module.rename(second, "health")
    module.rename(second, "health_1")
    module.rename(first, "gone")
    module.rename(second, "health")
    assert module.fresh("health_1") == "health_1"


def test_inputs_can_be_erased() -> None:
    module, _, _ = sample()
    module.erase_input("rows")
    assert module.inputs == {}
    assert module.add_input("rows", I64).name == "rows"


def test_ops_can_be_inserted_moved_and_found() -> None:
    module, b, rows = sample()
    b("health.clear", rows, names=("b",))
    first = module.add_op("prepare", "health.clear", [rows], [("a", None)], {}, None, index=0)
    assert [op.result.name for op in module.ops()] == ["a", "b"]
    module.move(first, "extend")
    assert [op.result.name for op in module.ops()] == ["b", "a"]
    assert first.phase == "extend"
    assert module.find("health.clear", "health.raise") == list(module.ops())
    assert module.order()[first] == 1


def test_results_can_be_dropped() -> None:
    module, b, rows = sample()
    index, bad = b.many("vocab.argmax", rows, rows, dtype="i32", keep="")
    (op,) = module.ops()
    module.drop_results(op, [index])
    assert op.results == (index,)
    assert module.fresh(bad.name) == bad.name


def test_entries() -> None:
    assert [entry_of(phase) for phase in PHASES] == ["prefill"] + ["step"] * 7
    module, b, rows = sample()
    with b.phase("prefill"):
        p = b("health.clear", rows).source
    s = b("health.clear", rows).source
    assert list(module.ops("prefill")) == [p]
    assert list(module.ops("step")) == [s]


def test_the_builder_knows_where_ops_come_from() -> None:
    module, b, rows = sample()
    with b.at(Location("x.yaml", 3, 4)):
        b("health.clear", rows)
    b("health.clear", rows)
    assert [op.location for op in module.ops()] == [Location("x.yaml", 3, 4), None]


def test_kinds_of_values() -> None:
    state, untyped = Value("kv", StateType("draft")), Value("x", None)
    assert is_state(state)
    assert not is_state(untyped)
    for value in (state, untyped):
        with pytest.raises(TypeError, match="not a tensor type"):
            tensor_type(value)
    assert tensor_type(Value("y", I64)) is I64
    assert repr(untyped) == "%x"


def test_sizes_of_types() -> None:
    dims = {"B": Dim("B", "request", 8, dynamic=True), "T": Dim("T", "token", None)}
    assert TensorType("f32", ("B", 64)).sizes(dims) == (8, 64)
    with pytest.raises(ValueError, match="dimension T"):
        TensorType("f32", ("T", 64)).sizes(dims)
    assert TensorType("f32", ("N", "B", "N")).renamed("N", "A") == TensorType("f32", ("A", "B", "A"))


def test_declarations_by_class() -> None:
    module, _, _ = sample()
    kernel = Kernel("k", "prepare", "prepare", 1)
    module.decls = [Options("o", (1,), 1, -1), kernel]
    assert module.decls_of(Kernel) == [kernel]


def test_the_only_declaration_of_a_kind() -> None:
    """Text that was edited may lack one, or have two: the user's mistake, not a crash."""
    module = Module("m")
    with pytest.raises(DiagnosticError, match="@m needs exactly one options declaration, has 0"):
        module.decl(Options)
    module.decls.append(Options("config", (1,), 1, -1))
    assert module.decl(Options).buckets == (1,)
    module.decls.append(module.decl(Options))
    with pytest.raises(DiagnosticError, match="has 2"):
        module.decl(Options)


def test_loads_and_stores_keep_their_order() -> None:
    """Of one field in one entry; loads do not wait for each other, nor for what other entries and fields do."""
    module, b, rows = sample()
    with b.phase("prefill"):
        b.many("carry.store", rows, rows, field="a")
    with b.phase("prepare"):
        early = b("carry.load", rows, names=("early",), field="a").source
        b("carry.load", rows, names=("again",), field="a")
    with b.phase("commit"):
        b.many("carry.store", rows, rows, field="a")
        b.many("carry.store", rows, rows, field="b")
    with b.phase("redraft"):
        last = b("carry.load", rows, names=("late",), field="a").source
    (_, store, later_store) = module.find("carry.store")
    dependencies = on_field(module)
    assert early is not None
    assert last is not None
    assert (dependencies[early], dependencies[last], dependencies[later_store]) == ([], [store], [])
    assert [op.result.name for op in dependencies[store]] == ["early", "again"]


def emptied(module: Module) -> None:
    (raised,) = module.find("health.raise")
    module.set_operands(raised, raised.operands[:1])


def turned(module: Module) -> None:
    module.phases["prepare"].reverse()


CHANGES: dict[str, Callable[[Module], object]] = {
    "a size": lambda module: module.dims.update(B=Dim("B", "request", 5)),
    "a carried value": lambda module: module.carries.update(a=CarriedValue("a", I64, kept=True)),
    "an input": lambda module: module.add_input("more", I64),
    "an output": lambda module: module.outputs.update(health=module.find("health.clear")[0].result),
    "a name": lambda module: module.rename(module.inputs["rows"], "lines"),
    "a type": lambda module: setattr(module.find("health.clear")[0].result, "type", I64),
    "an opcode": lambda module: setattr(module.find("health.clear")[0], "opcode", "health.raise"),
    "an attribute": lambda module: module.find("health.raise")[0].attrs.update(bit=2),
    "operands": emptied,
    "the order": turned,
    "a phase": lambda module: module.move(module.find("health.raise")[0], "tree"),
    "a place": lambda module: setattr(module.find("health.clear")[0], "location", Location("a.yaml", 1, 1, 1)),
    "a declaration": lambda module: module.decls.append(Kernel("k", "rows", "prepare", 8)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_state_of_a_module_is_all_that_it_says(change: Callable[[Module], object]) -> None:
    module, b, rows = sample()
    module.dims["B"] = Dim("B", "request", 4)
    _, bad = b.many("vocab.argmax", rows, rows, dtype="i32", keep="")
    b("health.raise", b("health.clear", rows), bad, bit=1)
    state = module.state()
    assert module.state() == state
    change(module)
    assert module.state() != state


def test_a_state_may_leave_declarations_out() -> None:
    module, *_ = sample()
    state = module.state(Kernel)
    module.decls.append(Kernel("k", "rows", "prepare", 8))
    assert module.state(Kernel) == state
    module.decls.append(Options("config", (1,), 1, -1))
    assert module.state(Kernel) != state
