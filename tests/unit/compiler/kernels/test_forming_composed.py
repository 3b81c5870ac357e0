"""Which launch computes which op of modules that somebody composed: the rules of form-kernels."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from formed import ARGMAX, HEAD, grid_of, launches, of_text, small, spec_of
from programs import compile_to, load

from specc.compiler.ir.core import Module, Op, tensor_type
from specc.compiler.ir.declarations import Kernel, Reference
from specc.compiler.ir.infer import assign_types
from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.types import TensorType
from specc.compiler.kernels.writing.blocks import is_long
from specc.compiler.kernels.writing.compose import has_tile
from specc.compiler.kernels.writing.family import cluster_of
from specc.compiler.kernels.writing.writer import Text
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.form_kernels import FormKernels
from specc.compiler.support.diagnostics import DiagnosticError


@pytest.mark.parametrize("logits", ["%x", "%y"])
@pytest.mark.parametrize("dtype", ["i32", "i64"])
@pytest.mark.parametrize("raised", [False, True])
def test_any_argmax_has_a_kernel(logits: str, dtype: str, raised: bool) -> None:
    shape = "B" if logits == "%x" else "B, N"
    ops = [f'%a, %bad = vocab.argmax({logits}, %rows) {{dtype = "{dtype}", keep = ""}} : {dtype}[{shape}], i1[{shape}]']
    ops += ["%h = health.raise(%health, %bad) {bit = 2} : i32[B]"] if raised else []
    module = small(("draft", ops), outputs={"a": "a"} | ({"h": "h"} if raised else {}))
    assert list(launches(module)) == ["draft_argmax"]
    spec = spec_of(module, "draft_argmax")
    assert [a.type for a in spec.arguments if a.name == "index_ptr"] == [f"*{dtype}"]
    assert ("health_ptr" in [a.name for a in spec.arguments]) == raised
    assert grid_of(module, "draft_argmax", 3) == (1 if logits == "%x" else 3)


@pytest.mark.parametrize("results", ["a", "bad", "p", "a bad p"])
@pytest.mark.parametrize("raised", [False, True])
def test_any_topk_of_a_row_has_a_kernel(results: str, raised: bool) -> None:
    """Whatever of it is read, and only that is stored."""
    ops = ["%p, %a, %bad = vocab.topk(%x, %rows) : f32[B, K], i64[B, K], i1[B]"]
    ops += ["%h = health.raise(%health, %bad) {bit = 0} : i32[B]"] if raised else []
    outputs = {name: name for name in results.split()} | ({"h": "h"} if raised else {})
    module = small(("draft", ops), outputs=outputs)
    assert list(launches(module)) == ["draft_topk"]
    (topk,) = module.find("vocab.topk")
    passed = {argument.passed.target for argument in spec_of(module, "draft_topk").arguments}
    assert {value for value in topk.results if value.name in passed} == {
        module.outputs[name] for name in results.split()
    }


def test_an_op_joins_the_first_launch_that_can_compute_it() -> None:
    """What waits for nothing joins the first, what waits for a reduction that one, from registers."""
    first = ARGMAX.format(0, "%x"), ARGMAX.format(1, "%x")
    module = small(
        ("draft", [*first, "%r0 = tree.root(%a0) : i64[B]", "%r1 = tree.root(%a1) : i64[B]"]),
        ("commit", ['%late = kv.positions(%r1) {axis = "", offset = 1, stride = 0} : i64[B]']),
        ("extend", ['%free = kv.positions(%lens) {axis = "", offset = 1, stride = 0} : i64[B]']),
        outputs={"r0": "r0", "late": "late", "free": "free"},
    )
    assert launches(module) == {
        "draft_argmax_0": ["vocab.argmax", "tree.root", "kv.positions"],
        "draft_argmax_1": ["vocab.argmax", "tree.root", "kv.positions"],
    }
    assert module.outputs["free"].source in cluster_of(module, "draft_argmax_0")


def test_long_rows_wait_for_no_result_of_their_own_launch() -> None:
    """All programs share their chunks, so they are repeated by a launch after the one that gathers them."""
    grow = (
        "%p, %a, %bad = vocab.topk(%x, %rows) : f32[B, K], i64[B, K], i1[B]",
        "%kept = kv.advance(%a) : i64[B, K]",
        "%g = tree.gather(%hidden, %kept) : f32[B, K, 300]",
        "%gg = tree.gather(%g, %at) : f32[B, K, 300]",
    )
    module = small(("draft", list(grow)), outputs={"g": "g", "gg": "gg"})
    assert launches(module) == {
        "draft_topk": ["vocab.topk", "kv.advance", "tree.gather"],
        "draft_rows": ["tree.gather"],
    }


def test_a_field_is_stored_after_all_that_load_it() -> None:
    module = small(
        ("prepare", ['%s = carry.load(%rows) {field = "state"} : i64[B]']),
        ("draft", [ARGMAX.format(0, "%x"), "%r0 = tree.root(%a0) : i64[B]"]),
        ("commit", ['carry.store(%rows, %r0) {field = "state"}']),
        outputs={"s": "s", "a0": "a0"},
    )
    (store,) = module.find("carry.store")
    assert store.attrs["kernel"] == "draft_argmax"


def test_more_blocks_than_registers_take_another_launch() -> None:
    """Of ops that could all be computed by one, the last ones begin a launch of their own."""
    head = HEAD + "".join(f"  input %b{i} : f32[B, 128]\n" for i in range(17))
    ops = [f"    %r{i} = tree.repeat(%b{i}) : f32[B, K, 128]" for i in range(17)]
    outputs = [f"  output r{i} = %r{i}" for i in range(17)]
    text = "\n".join([head + "  phase draft {", *ops, "  }", *outputs, "}\n"])
    for branches, names_ in ((2, ["draft_rows"]), (16, ["draft_rows_0", "draft_rows_1"])):
        module = of_text(text.replace("K : branch = 2", f"K : branch = {branches}"))
        assert list(launches(module)) == names_


PROBE = OpDef(
    "model.probe",
    "rows: i64[B], at: i64[B, K] -> logits: $dtype[B, V]",
    "A forward that nobody knows, with its positions under another name.",
    {"capture": str, "dtype": str, "step": int},
    effect="external",
)


def test_positions_advance_when_every_forward_has_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are replaced in memory; whoever else reads them does so before, whatever its name is."""
    monkeypatch.setitem(OPS, "model.probe", PROBE)
    line = '%l{0} = model.probe(%rows, {1}) {{capture = "null", dtype = "f32", step = {0}}} : f32[B, V]'
    forwards = [line.format(0, "%at"), line.format(1, "%at"), line.format(2, "%at1")]
    draft = [ARGMAX.format(step, f"%l{step}") for step in range(3)]
    ops = [forwards[0], draft[0], "%at1 = kv.advance(%at) : i64[B, K]", forwards[1], draft[1], forwards[2], draft[2]]
    module = small(("draft", ops), outputs={f"a{step}": f"a{step}" for step in range(3)})
    (advance,) = module.find("kv.advance")
    assert advance.attrs["kernel"] == "draft_argmax_1"


def test_log_probabilities_of_other_logits_are_not_those_of_an_argmax() -> None:
    """Nor of other rows of them: they have a launch of their own."""
    module = compile_to("canonicalize", load("EAGLE", outputs=["logprobs"]))
    assert _launch_with(module, *_verified(module))
    for name in ("logits", "rows"):
        changed = compile_to("canonicalize", load("EAGLE", outputs=["logprobs"]))
        argmax, logprob = _verified(changed)
        value = logprob[name]
        changed.replace_operand(logprob, value, changed.add_input("others", value.type))
        assert not _launch_with(changed, argmax, logprob)
        assert logprob.attrs["kernel"] == "score"


def _verified(module: Module) -> tuple[Op, Op]:
    """The argmax of the target's logits, and the log-probabilities."""
    (argmax,) = [op for op in module.find("vocab.argmax") if op.phase == "verify"]
    (logprob,) = [op for op in module.find("vocab.logprob") if op.phase == "verify"]
    return argmax, logprob


def _launch_with(module: Module, first: Op, second: Op) -> bool:
    """Whether two ops are launched together."""
    with contextlib.suppress(DiagnosticError):
        FormKernels().run(module, Context())
    return "kernel" in first.attrs and first.attrs["kernel"] == second.attrs.get("kernel")


@pytest.mark.parametrize("algorithm", ["NGRAM", "EAGLE"])
def test_tokens_are_counted_behind_all_that_reads_the_counts(algorithm: str) -> None:
    """The draw, and behind it the log-probabilities, in prefill and in a step."""
    asked = {"verify": "target_only", "sampling": ["penalties"], "outputs": ["logprobs"], "logprobs": "processed"}
    module = compile_to("form-kernels", load(algorithm, **asked))
    order = {kernel.name: number for number, kernel in enumerate(module.decls_of(Kernel))}
    for entry in ("prefill", "step"):
        (count,) = [op for op in module.ops(entry) if op.opcode == "carry.count"]
        field = count.attrs["field"]
        loads = [op for op in module.ops(entry) if op.opcode == "carry.load" and op.attrs["field"] == field]
        assert len(loads) == 2
        assert all(order[load.attrs["kernel"]] < order[count.attrs["kernel"]] for load in loads)


CROSSED = """
module @program {
  established compacted, kv-bound, live, tree-form, typed, verify-selected
  dim B : request <= 4
  dim K : branch = 1
  input %first : i64[B, K]
  input %second : i64[B, K]
  phase prepare {
    %a1 = kv.advance(%first) : i64[B, K]
    %b1 = kv.advance(%second) : i64[B, K]
    %a2 = kv.advance(%b1) : i64[B, K]
    %b2 = kv.advance(%a1) : i64[B, K]
  }
  output a = %a2
  output b = %b2
}
"""


def test_launches_never_wait_for_each_other() -> None:
    module = of_text(CROSSED)
    assert list(launches(module)) == ["prepare_rows"]


UNKNOWN = OpDef("test.probe", "x: f32[B, V] -> x: f32[B, V]", "An op without a device function.")


def test_what_nothing_computes_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "test.probe", UNKNOWN)
    module = small(("draft", ["%z = test.probe(%x) : f32[B, V]"]), outputs={"z": "z"})
    assert [reference.name for reference in module.decls_of(Reference)] == ["torch_test_probe"]


def row_op(module: Module, opcode: str, *operands: TensorType, **attrs: Any) -> Op:
    """An op of inputs of these types."""
    inputs = [module.add_input(module.fresh("in"), type_) for type_ in operands]
    slots = OPS[opcode].results
    op = module.add_op("draft", opcode, inputs, [(slot.name, None) for slot in slots], attrs, None)
    assign_types(module, op)
    return op


@pytest.mark.parametrize(
    ("opcode", "operands", "tile", "long"),
    [
        ("tree.repeat", [TensorType("f32", ("B", 128))], True, False),
        ("tree.repeat", [TensorType("f32", ("B", 129))], True, True),
        ("tree.repeat", [TensorType("f32", ("B", 5000))], False, True),
        ("tree.gather", [TensorType("f32", ("B", "K")), TensorType("i64", ("B", "K"))], True, False),
        ("tree.gather", [TensorType("f32", ("B", "K", 5000)), TensorType("i64", ("B", "K"))], False, True),
        ("vocab.topk", [TensorType("f32", ("B", "V")), TensorType("i64", ("B",))], False, False),
        ("commit.select", [TensorType("i32", ("B",))], True, False),
    ],
    ids=lambda value: "" if isinstance(value, list) else str(value),
)
def test_what_one_program_holds(opcode: str, operands: list[TensorType], tile: bool, long: bool) -> None:
    module = small(("draft", [ARGMAX.format(0, "%x")]), outputs={"a": "a0"})
    op = row_op(module, opcode, *operands)
    assert (has_tile(module, op), is_long(module, op)) == (tile, long)


@pytest.mark.parametrize(("batch", "wide"), [(4, False), (1 << 19, False), (1 << 20, True)])
def test_addresses_are_as_wide_as_memory(batch: int, wide: bool) -> None:
    """A request's part of a value of 2**31 elements and more begins past what 32 bits count."""
    module = small(("draft", [ARGMAX.format(0, "%x")]), outputs={"a": "a0"})
    module.dims["B"] = type(module.dims["B"])("B", "request", batch, dynamic=True)
    type_ = TensorType("f32", ("B", 2048 + 2047))
    assert (".to(tl.int64)" in Text(module, "k", ()).address("x_ptr", type_)) == wide
    assert tensor_type(module.inputs["rows"]).shape == ("B",)
