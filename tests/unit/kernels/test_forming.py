"""Which launch computes which op: the rules of form-kernels, for programs, and for ops that somebody composed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from programs import compile_to, load

from specc.algorithms import names, needs
from specc.ir.core import PHASES, Module, Op, entry_of, tensor_type
from specc.ir.declarations import Kernel, Reference
from specc.ir.infer import assign_types
from specc.ir.nodes import is_external, node_order, quotient
from specc.ir.opdef import OpDef
from specc.ir.ops import OPS
from specc.ir.parser import parse_module
from specc.ir.types import TensorType
from specc.kernels import FAMILIES
from specc.kernels.shared.base import CAPACITY, STORES, Spec, cluster_of
from specc.kernels.shared.blocks import is_long
from specc.kernels.shared.compose import has_tile
from specc.kernels.shared.text import Text
from specc.pass_manager.pass_base import Context
from specc.passes.form_kernels import FormKernels
from specc.support.diagnostics import DiagnosticError

TREE: dict[str, Any] = {"topk": 4, "num_steps": 4, "num_draft_tokens": 9}
FORMS = [(name, form) for name in names() for form in ({"num_steps": 4}, TREE) if form is not TREE or needs(name).trees]
HEAD = """module @small {
  established compacted, kv-bound, live, tree-form, typed, verify-selected
  dim B : request <= 4
  dim K : branch = 2
  dim N : node = 3
  dim A : path = 3
  dim V : vocab = 64
  carry @state : i64[B]
  input %rows : i64[B]
  input %lens : i64[B]
  input %health : i32[B]
  input %x : f32[B, V]
  input %y : bf16[B, N, V]
  input %at : i64[B, K]
  input %tokens : i64[B, K]
  input %scores : f32[B, K]
  input %hidden : f32[B, K, 300]
"""
ARGMAX = '%a{0}, %bad{0} = vocab.argmax({1}, %rows) {{dtype = "i32", keep = ""}} : i32[B], i1[B]'


def small(*phases: tuple[str, list[str]], outputs: Mapping[str, str] | None = None) -> Module:
    """A module of a few ops, with its kernels."""
    lines = [line for phase, ops in phases for line in (f"  phase {phase} {{", *(f"    {op}" for op in ops), "  }")]
    lines += [f"  output {name} = %{value}" for name, value in (outputs or {}).items()]
    return of_text(HEAD + "\n".join(lines) + "\n}\n")


def of_text(text: str) -> Module:
    """A module with its kernels."""
    module = parse_module(text, "small.specir")
    FormKernels().run(module, Context())
    return module


def formed(algorithm: str, change: Callable[[Module], None] | None = None, **keys: Any) -> Module:
    """A program with its kernels, changed before they are formed."""
    module = compile_to("canonicalize", load(algorithm, **keys))
    if change is not None:
        change(module)
    FormKernels().run(module, Context())
    return module


def launches(module: Module) -> dict[str, list[str]]:
    """The opcodes of every launch, by its name."""
    return {kernel.name: [op.opcode for op in cluster_of(module, kernel.name)] for kernel in module.decls_of(Kernel)}


def spec_of(module: Module, kernel: str) -> Spec:
    """The kernel of a launch."""
    (family,) = [decl.family for decl in module.decls_of(Kernel) if decl.name == kernel]
    return FAMILIES[family].spec(module, kernel, cluster_of(module, kernel))


def grid_of(module: Module, kernel: str, batch: int) -> int:
    """Programs of a request."""
    (family,) = [decl.family for decl in module.decls_of(Kernel) if decl.name == kernel]
    rows, programs, last = FAMILIES[family].grid(module, cluster_of(module, kernel), batch)
    assert (rows, last) == (batch, 1)
    return programs


# --- programs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "form"), FORMS)
def test_every_reduction_is_a_launch_and_nothing_waits_for_what_is_later(algorithm: str, form: dict[str, Any]) -> None:
    module = formed(algorithm, **form, page_size=4)
    found = launches(module)
    assert all(sum(code in ("vocab.argmax", "vocab.topk") for code in codes) <= 1 for codes in found.values())
    for kernel, codes in found.items():
        reduces = {"argmax": "vocab.argmax", "topk": "vocab.topk"}
        family = next(decl.family for decl in module.decls_of(Kernel) if decl.name == kernel)
        assert family not in reduces or reduces[family] in codes
    order = node_order(module)
    assert all(order.index(before) < order.index(after) for before, after in quotient(module).edges)


@pytest.mark.parametrize(("algorithm", "form"), FORMS)
def test_launches_of_a_step(algorithm: str, form: dict[str, Any]) -> None:
    """One to begin with, one after every forward, and those that move keys and values or rows along the path."""
    module = formed(algorithm, **form, page_size=4)
    step = [kernel for kernel in module.decls_of(Kernel) if entry_of(kernel.phase) == "step"]
    forwards = [op for op in module.ops("step") if is_external(op) and any(True for _ in logits_of(module, op))]
    moves = [kernel for kernel in step if kernel.family in ("compact", "stash", "duplicate_tail", "ngram_propose")]
    assert len(step) == 1 + len(forwards) + len(moves)
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
    for store in (op for op in module.ops("step") if op.opcode in (*STORES, "carry.append")):
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


@pytest.mark.parametrize("mask", ["none", "qlen", "bitpacked", "full"])
def test_a_tree_is_built_where_its_last_step_is_reduced(mask: str) -> None:
    found = launches(formed("EAGLE", **TREE, mask=mask, context_length=64))
    assert {"tree.grow", "tree.select", "tree.positions"} <= set(found["draft_topk_2"])
    assert found["draft_topk_2"].count("health.raise") == 2
    assert ("tree.mask" in found["draft_topk_2"]) == (mask != "none")


def test_a_tree_of_one_step_begins_the_step() -> None:
    found = launches(formed("EAGLE", topk=4, num_steps=1, num_draft_tokens=4))
    assert "tree.select" in found["prepare_rows"]


@pytest.mark.parametrize("result", ["tokens", "scores", "kept", "candidates"])
def test_what_is_read_elsewhere_is_stored_and_changes_no_launch(result: str) -> None:
    def hand_out(module: Module) -> None:
        grow = [op for op in module.phases["draft"] if op.opcode == "tree.grow"][-1]
        module.outputs["watched"] = grow.out(result)

    module = formed("EAGLE", hand_out, **TREE)
    assert launches(module) == launches(formed("EAGLE", **TREE))
    passed = [argument.value for argument in spec_of(module, "draft_topk_2").arguments]
    assert passed.count(module.outputs["watched"]) == 1
    unwatched = formed("EAGLE", **TREE)
    grow = [op for op in unwatched.phases["draft"] if op.opcode == "tree.grow"][-1]
    others = [argument.value for argument in spec_of(unwatched, "draft_topk_2").arguments]
    assert grow.out(result) not in others


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
    found: dict[str, list[str]] = {}
    for op in module.ops("step"):
        if op.opcode in (*STORES, "carry.append"):
            found.setdefault(str(op.attrs["kernel"]), []).append(str(op.attrs["field"]))
    assert {kernel: sorted(fields) for kernel, fields in found.items()} == CARRIES[algorithm]


def test_a_block_becomes_a_chain() -> None:
    module = formed("DFLASH", num_steps=5)
    cluster = cluster_of(module, "draft_argmax")
    assert {op.opcode for op in cluster} == {"vocab.argmax", "chain.join", "health.raise"}
    spec = spec_of(module, "draft_argmax")
    assert spec.scratch[0].shape == (4, 5, dict(spec.constants)["SPLITS"])
    assert grid_of(module, "draft_argmax", 2) == 5
    passed = [argument.value for argument in spec.arguments]
    assert cluster[0].results[0] not in passed


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


# --- ops that somebody composed -----------------------------------------------------------------------------------


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
    passed = {argument.value for argument in spec_of(module, "draft_topk").arguments}
    assert {value for value in topk.results if value in passed} == {module.outputs[name] for name in results.split()}


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
    """Nor of other rows of them; whoever computes them, it is not the launch of the argmax."""
    module = compile_to("canonicalize", load("EAGLE", outputs=["logprobs"]))
    assert _launch_with(module, *_verified(module))
    for name in ("logits", "rows"):
        other = compile_to("canonicalize", load("EAGLE", outputs=["logprobs"]))
        argmax, logprob = _verified(other)
        value = logprob[name]
        other.replace_operand(logprob, value, other.add_input("others", value.type))
        assert not _launch_with(other, argmax, logprob)


def _verified(module: Module) -> tuple[Op, Op]:
    """The argmax of the target's logits, and the log-probabilities."""
    (argmax,) = [op for op in module.find("vocab.argmax") if op.phase == "verify"]
    (logprob,) = [op for op in module.find("vocab.logprob") if op.phase == "verify"]
    return argmax, logprob


def _launch_with(module: Module, one: Op, other: Op) -> bool:
    """Whether two ops are launched together."""
    with contextlib.suppress(DiagnosticError):
        FormKernels().run(module, Context())
    return "kernel" in one.attrs and one.attrs["kernel"] == other.attrs.get("kernel")


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
