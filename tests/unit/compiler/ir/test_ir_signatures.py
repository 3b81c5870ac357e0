"""The op table: signatures parse, docs/ir.md lists exactly these ops, and each has reference semantics."""

from __future__ import annotations

import importlib
import re

import pytest
from programs import ROOT

from specc.compiler.ir.core import Module
from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.signature import TypeMismatch
from specc.compiler.ir.text.parser import parse_type
from specc.compiler.ir.types import DTYPES, StateType, TensorType
from specc.runtime.semantics.reference import MOVES, STORES
from specc.runtime.semantics.reference import OPS as REFERENCE

DOC = (ROOT / "docs" / "ir.md").read_text()


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_signatures(op: OpDef) -> None:
    """Every word of a signature is understood: a dtype, a state, a variable or an attribute."""
    before, _, after = op.signature.partition("->")
    assert len(op.operands) == before.count(":")
    assert len(op.results) == after.count(":")
    for slot in (*op.operands, *op.results):
        state, tensor = r"!(kv|state)<\$?\w+>(\[\?\w+\])?", r"([TU]|\$\w+|\w+)(<[?$]\w+>)?\[[^\[\]]*\]"
        assert re.fullmatch(rf"\?|{state}|{tensor}", slot.pattern), slot
        dtype = slot.pattern.partition("[")[0].partition("<")[0]
        if "[" in slot.pattern and not dtype.startswith(("$", "!")):
            assert dtype in ("T", "U") or dtype in DTYPES, slot
        for attribute in re.findall(r"\$(\w+)", slot.pattern):
            assert attribute in (op.attrs or {}), f"{op.name} uses ${attribute}"


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_results_are_bound_by_operands(op: OpDef) -> None:
    """A result's variables occur in an operand that is always there."""
    given = " ".join(slot.pattern for slot in op.operands if not slot.optional)
    for slot in op.results:
        for variable in re.findall(r"[?*]\w+", slot.pattern):
            assert variable in given, f"{op.name}: nothing binds {variable} of {slot.name}"
        if slot.pattern.startswith("T["):
            assert "T[" in given, f"{op.name}: nothing binds T of {slot.name}"


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_slots_are_ordered(op: OpDef) -> None:
    """Optional and variadic slots come last; an in-place op replaces its first operand by its first result."""
    for slots in (op.operands, op.results):
        marks = [slot.optional or slot.variadic for slot in slots]
        assert marks == sorted(marks)
    assert sum(slot.optional for slot in op.results) <= 1
    if op.inplace:
        assert op.operands[0].pattern == op.results[0].pattern
    assert op.doc.endswith(".")


def documented_ops() -> set[str]:
    """Names in the first column of the op table."""
    rows = [line.split("|")[1] for line in DOC.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}


def test_the_document_lists_exactly_these_ops() -> None:
    assert documented_ops() == {name for name, op in OPS.items() if op.reference is None}  # others are a plugin's


def documented_attributes() -> dict[str, set[str]]:
    """Attributes column by op."""
    table: dict[str, set[str]] = {}
    for line in DOC.splitlines():
        cells = line.split("|")
        if line.startswith("| `") and len(cells) >= 5:
            for name in re.findall(r"`([\w.]+)`", cells[1]):
                table[name] = set(re.findall(r"`(\w+)`", cells[3]))
    return table


def test_the_document_names_the_attributes() -> None:
    """Types of forwards (dtype, logits_dtype, width, ...) are the algorithm's business and not in the table."""
    implied = {"dtype", "logits_dtype", "width", "states", "input_dtype", "input_width"}
    for name, attributes in documented_attributes().items():
        wanted = set(OPS[name].attrs or {})
        wanted -= implied if name.startswith("model.") else set()
        assert attributes == wanted, name


def test_every_op_but_forwards_has_reference_semantics() -> None:
    computed = {name: op for name, op in OPS.items() if op.effect not in ("external", "host", "given", "collective")}
    wanted = {name for name, op in computed.items() if not name.startswith("spec.") and op.reference is None}
    assert wanted == set(REFERENCE) | set(MOVES)
    assert not set(REFERENCE) & set(MOVES)


def test_an_op_is_declared_and_computed_in_files_of_one_name() -> None:
    functions = REFERENCE | STORES | {name: function for name, (_, function) in MOVES.items()}
    for name, function in functions.items():
        stem = function.__module__.rpartition(".")[2]
        declared = importlib.import_module(f"specc.compiler.ir.ops.{stem}").OPS
        assert name in {op.name for op in declared}, stem


def test_ops_that_change_kv_buffers_thread_their_owners_state() -> None:
    """What the reference changes in memory, the IR orders as dataflow."""
    for name, (owner, _) in MOVES.items():
        for slots in (OPS[name].operands, OPS[name].results):
            whose, _, kind = owner.partition(".")
            (state,) = (slot.pattern for slot in slots if slot.pattern.startswith("!"))
            assert state.removesuffix("[?n]") == f"!{kind or 'kv'}<{whose}>", name
        assert not OPS[name].inplace


def infer(signature: str, *operands: str, **attrs: object) -> list[str]:
    """Result types of a made-up op."""
    types = [parse_type(text) for text in operands]
    return [str(type_) for type_ in OpDef("x.y", signature, "").result_types({}, types, attrs)]


def test_variables_are_bound_and_built() -> None:
    assert infer("x: T[B, ?n, *x] -> y: T[B, *x, ?n]", "f16[B, N, K, 64]") == ["f16[B, K, 64, N]"]
    assert infer("x: T[B, *x, ?v] -> y: i32[B, *x]", "f16[B, V]") == ["i32[B]"]
    assert infer("x: T[*x] -> y: T[*x]", "f16[]") == ["f16[]"]
    assert infer("-> y: $dtype[B, $keep]", dtype="i64", keep="K") == ["i64[B, K]"]
    assert infer("-> y: $dtype[B, $keep]", dtype="i64", keep="") == ["i64[B]"]
    assert infer("-> y: $dtype[B, $width]", dtype="f32", width=64) == ["f32[B, 64]"]
    assert infer("s: !kv<draft> -> s: !kv<draft>", "!kv<draft>") == ["!kv<draft>"]


@pytest.mark.parametrize(
    ("signature", "operands", "message"),
    [
        ("x: i64[B] ->", ["i32[B]"], "x must be i64, got i32"),
        ("x: i64[B] ->", ["i64[N]"], "x must have B at axis 0, got N"),
        ("x: i64[B] ->", ["i64[B, K]"], r"x must be i64\[B\], got i64\[B, K\]"),
        ("x: i64[B, K] ->", ["i64[B]"], r"x must be i64\[B, K\], got i64\[B\]"),
        ("x: i64[B] ->", ["!kv<draft>"], r"x must be i64\[B\], got !kv<draft>"),
        ("x: !kv<draft> ->", ["!kv<target>"], "x must be !kv<draft>, got !kv<target>"),
        ("x: !kv<draft> ->", ["i64[B]"], "x must be !kv<draft>"),
        ("x: T[B], y: T[B] ->", ["f32[B]", "f16[B]"], "y must be f32, got f16"),
        ("x: i64[?n], y: i64[?n] ->", ["i64[N]", "i64[A]"], "y must have N at axis 0, got A"),
        ("x: i64[B, *x], y: i64[B, *x] ->", ["i64[B, N]", "i64[B, A]"], "does not fit"),
        ("x: i64[B, *x, Vd] ->", ["i64[B, V]"], r"x must have Vd at axis 1, got V in i64\[B, V\]"),
        ("x: i64[B, *x, Vd] ->", ["i64[B, K, K, V]"], "x must have Vd at axis 3, got V"),
        ("x: i64[B] ->", [], "takes 1 operands, got 0"),
        ("x: i64[B] ->", ["i64[B]", "i64[B]"], "takes 1 operands, got 2"),
        ("x: i64[B, 64] ->", ["i64[B, 32]"], "x must have 64 at axis 1, got 32"),
    ],
)
def test_mismatches(signature: str, operands: list[str], message: str) -> None:
    with pytest.raises(TypeMismatch, match=message):
        infer(signature, *operands)


def test_operand_names() -> None:
    select = OPS["tree.select"]
    parts = ("scores0", "scores1", "scores2", "tokens0", "tokens1", "tokens2", "kept1")
    assert select.operand_names(9, {"steps": 3}) == ("rows", "bonus", *parts)
    assert OPS["verify.greedy"].operand_names(3, {}) == ("tokens", "argmax", "rows")
    assert OPS["model.draft"].operand_names(7, {})[-1] == "hidden"


def test_ops_in_place_have_one_result() -> None:
    """Whose memory is that of the first operand."""
    assert {op.name: len(op.results) for op in OPS.values() if op.inplace and len(op.results) != 1} == {}


def test_operands_and_results_have_names() -> None:
    module = Module("m")
    seq_lens = module.add_input("seq_lens", TensorType("i64", ("B",)))
    lens, predict = (module.add_input(name, TensorType("i32", ("B",))) for name in ("lens", "predict"))
    op = module.add_op("commit", "commit.lengths", [seq_lens, lens, predict], [("a", None), ("b", None)], {}, None)
    assert (op["seq_lens"], op["accept_lens"], op.get("predict")) == (seq_lens, lens, predict)
    assert (op.out("new_seq_lens"), op.out("bonus")) == op.results
    assert op.get("parent") is None
    with pytest.raises(KeyError):
        op["parent"]
    with pytest.raises(KeyError):
        op.out("predict")


def test_equal_sizes_are_not_equal_axes() -> None:
    assert TensorType("i64", ("B", "N")) != TensorType("i64", ("B", "A"))


def test_optional_operands_come_in_order() -> None:
    """None of them or the first ones; one too many is a count that does not fit, and their types are those of each."""
    greedy = OPS["verify.greedy"]
    tokens, rows = TensorType("i64", ("B", "A")), TensorType("i64", ("B",))
    operands = [tokens, TensorType("i32", ("B", "A")), rows]
    assert len(greedy.result_types({}, operands, {})) == 3
    assert len(greedy.result_types({}, [*operands, tokens], {})) == 3
    with pytest.raises(TypeMismatch, match="takes 3 to 4 operands, got 5"):
        greedy.result_types({}, [*operands, tokens, tokens], {})
    pair = OpDef("x.y", "a: i64[B], b?: i64[B], c?: i32[B] ->", "")
    assert pair.result_types({}, [rows, rows], {}) == ()
    assert pair.operand_names(2, {}) == ("a", "b")
    with pytest.raises(TypeMismatch, match="takes 1 to 3 operands, got 0"):
        pair.result_types({}, [], {})
    with pytest.raises(TypeMismatch, match="c must be i32, got i64"):
        pair.result_types({}, [rows, rows, rows], {})


def test_what_a_forward_hands_over_besides_is_listed_by_an_attribute() -> None:
    """Variadic results are a signature of their own, with the variables of the operands."""
    target = OPS["model.target"]
    nodes = TensorType("i64", ("B", "N"))
    operands = [nodes, nodes, nodes, *[TensorType("i64", ("B",))] * 2, StateType("target")]
    attrs = {
        "capture": "full",
        "dtype": "bf16",
        "logits_dtype": "f32",
        "width": 8,
        "extras": "picks: i32[B, ?n, 2, 3], more: f32[B]",
    }
    types = [str(type_) for type_ in target.result_types({}, operands, attrs)]
    assert types == ["f32[B, N, V]", "!kv<target>", "bf16[B, N, 8]", "i32[B, N, 2, 3]", "f32[B]"]
    slots = target.result_slots(5, attrs)
    assert [slot.name for slot in slots] == ["logits", "kv", "hidden", "picks", "more"]
    assert [slot.name for slot in target.result_slots(4, attrs)] == ["logits", "kv", "picks", "more"]
    assert len(target.result_types({}, operands, attrs | {"extras": ""})) == 3
    mask = TensorType("i1", ("B", "N", "N"))
    assert len(target.result_types({}, [*operands, mask], attrs)) == 5
