"""The checker: for every rule a module that breaks it, and one that does not."""

from __future__ import annotations

import pytest
from programs import compile_to, load

from specc.compiler.algorithms import names
from specc.compiler.ir.checker import check_linear, check_module
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.passes.pipeline import PASSES

HEAD = """module @m {
  established ESTABLISHED
  dim B : request <= 4
  dim K : branch = 1
  dim N : node = 4
  dim A : path = 4
  dim V : vocab = 8
  dim P : pool = 5
  dim C : context
  input %rows : i64[B]
  input %lens : i64[B]
  input %kv : !kv<target>
  carry @c : i64[B]
"""


def problems(body: str, established: str = "typed") -> list[str]:
    """First lines of everything the checker finds, with its code."""
    module = parse_module(HEAD.replace("ESTABLISHED", established) + body + "\n}\n", "m.specir")
    diagnostics = check_module(module) + check_linear(module)
    return [f"{d.code}: {d.message.splitlines()[0]}" for d in diagnostics]


def in_phase(*lines: str, phase: str = "prepare") -> str:
    """Lines inside a phase."""
    return "\n".join([f"phase {phase} {{", *lines, "}"])


CLEAR = "%h = health.clear(%rows) : i32[B]"
POSITIONS = '%p = kv.positions(%lens) {axis = "K", offset = 0, stride = 0} : i64[B, K]'
FORWARD = '{capture = "null", dtype = "f32", logits_dtype = "f32", per = "T", width = 0} : f32[B, V], !kv<target>'
DRAFTS = (
    "dim D : forward = 2\ndim Vd : draft_vocab = 8\ninput %d : !kv<draft>\ninput %t : i64[B, K]\n"
    "input %slots : i64[D, B, K]\n"
)
ASSIST = (
    '{capture = "null", dtype = "f32", input_dtype = "f32", input_width = 0, logits_dtype = "f32", step = 0, width = 0}'
)


def draft(step: int, results: str, kv: str) -> str:
    """A forward of the draft."""
    attrs = ASSIST.replace("step = 0", f"step = {step}")
    return f"{results} = model.draft(%t, %t, %slots, %rows, %lens, {kv}) {attrs} : f32[B, K, Vd], !kv<draft>"


BROKEN = [
    ("unknown op", in_phase("%x = health.explode(%rows) : i32[B]"), "unknown op health.explode"),
    ("missing attribute", in_phase("%x = carry.load(%rows) : i64[B]"), "attribute field must be str, got None"),
    ("attribute of another type", in_phase("%x = carry.load(%rows) {field = 3} : i64[B]"), "must be str, got 3"),
    (
        "a truth value is no number",
        in_phase(POSITIONS.replace("offset = 0", "offset = true")),
        "attribute offset must be int, got True",
    ),
    ("unknown attribute", in_phase(CLEAR.replace(" :", " {colour = 1} :")), "health.clear has no attribute colour"),
    ("too few results", in_phase("health.clear(%rows)"), "health.clear has 1 results, not 0"),
    (
        "too many results",
        in_phase("%a, %b = health.clear(%rows) : i32[B], i32[B]"),
        "health.clear has 1 results, not 2",
    ),
    (
        "use before def across phases",
        in_phase(CLEAR, phase="extend") + "\n" + in_phase('carry.store(%rows, %h) {field = "c"}', phase="draft"),
        "%h is read before it is defined",
    ),
    (
        "use across entries",
        in_phase(POSITIONS, phase="prefill") + "\n" + in_phase("%q = kv.advance(%p) : i64[B, K]"),
        "%p belongs to the prefill entry",
    ),
    (
        "read after in-place overwrite",
        in_phase(POSITIONS, "%q = kv.advance(%p) : i64[B, K]", "%r = kv.advance(%p) : i64[B, K]"),
        "%p is read after kv.advance overwrote it",
    ),
    (
        "output after in-place overwrite",
        in_phase(POSITIONS, "%q = kv.advance(%p) : i64[B, K]") + "\noutput p = %p",
        "%p is read after kv.advance overwrote it",
    ),
    ("in-place op without operands", in_phase("%q = kv.advance() : i64[B, K]"), "kv.advance: takes 1 operands, got 0"),
    ("wrong result type", in_phase("%h = health.clear(%rows) : i64[B]"), "%h is i64[B], should be i32[B]"),
    (
        "state read twice",
        DRAFTS + in_phase(draft(0, "%a, %s", "%d"), draft(1, "%b, %u", "%d"), phase="draft"),
        "state %d is read twice",
    ),
    (
        "two calls of one forward",
        DRAFTS + in_phase(draft(1, "%a, %s", "%d"), draft(1, "%b, %u", "%s"), phase="draft"),
        "model.draft is node draft_1, and so is another op",
    ),
    (
        "a forward of both entries that has one name",
        "\n".join(
            in_phase(f"%{name}, %{name}kv = model.prefill_target(%rows, %lens, %kv) {FORWARD}", phase=phase)
            for name, phase in (("a", "prefill"), ("b", "verify"))
        ),
        "model.prefill_target is node prefill_target, and so is another op",
    ),
    *(
        (
            f"column {column} of a chain of 4",
            "input %t : i64[B, A]\ninput %k : i64[B, K]\n"
            + in_phase(f"%u = chain.append(%t, %k) {{column = {column}}} : i64[B, A]", phase="draft"),
            f"column is {column}, and axis A has 4 entries",
        )
        for column in (-1, 4)
    ),
    (
        "a draft forward that no slots were made for",
        DRAFTS + in_phase(draft(2, "%x, %y", "%d"), phase="draft"),
        "step is 2, and axis D has 2 entries",
    ),
    ("undeclared dimension", "input %x : f32[B, Q]", "dimension Q is not declared"),
    ("carried by nobody", in_phase('%x = carry.load(%rows) {field = "d"} : i64[B]'), "nothing named d is carried"),
    (
        "stored by another type",
        in_phase(CLEAR, 'carry.store(%rows, %h) {field = "c"}'),
        "c must be i64, got i32 in i32[B]",
    ),
]


@pytest.mark.parametrize(("body", "message"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_broken_modules(body: str, message: str) -> None:
    messages = problems(body)
    assert messages
    assert all(message in line for line in messages), messages


UNTIL = [
    ("expanded", 'spec.step() {algorithm = "X"}'),
    ("kv-bound", '%s = kv.verify_slots(%table, %rows, %lens) {axis = "N", offset = 0} : i64[B, N]'),
    ("compacted", "%s = commit.path(%x, %index) : i32[B, A]"),
]


@pytest.mark.parametrize(("stage", "line"), UNTIL, ids=[case[0] for case in UNTIL])
def test_ops_end_with_their_stage(stage: str, line: str) -> None:
    inputs = "input %table : i32[P, C]\ninput %x : i32[B, N]\ninput %index : i32[B, A]\n"
    assert problems(inputs + in_phase(line)) == []
    (message,) = problems(inputs + in_phase(line), f"typed, {stage}")
    assert f"is not legal once the module is {stage}" in message


def test_untyped_modules_are_checked_without_types() -> None:
    assert problems(in_phase("%h = health.clear(%rows) : i64[B]"), "expanded") == []


def test_a_diagnostic_shows_the_neighbourhood() -> None:
    module = parse_module(HEAD.replace("ESTABLISHED", "typed") + in_phase(CLEAR, "%x = no.op() : i32[B]") + "\n}")
    (diagnostic,) = check_module(module)
    assert [note.message for note in diagnostic.notes] == ["in phase prepare:", f"  {CLEAR}", "> %x = no.op() : i32[B]"]


def test_reading_before_overwriting_is_fine() -> None:
    lines = [POSITIONS, '%s = carry.load(%rows) {field = "c"} : i64[B]', "%q = kv.advance(%p) : i64[B, K]"]
    assert problems(in_phase(*lines) + "\noutput q = %q") == []


def test_an_axis_as_long_as_an_engine_says_holds_any_index() -> None:
    inputs = "input %t : i64[B, C]\ninput %k : i64[B, K]\n"
    for column in (0, 511):
        assert problems(inputs + in_phase(f"%u = chain.append(%t, %k) {{column = {column}}} : i64[B, C]")) == []


def test_one_state_per_entry() -> None:
    """Prefill and step each thread the engine's KV from its own start."""
    prefill = in_phase(f"%a, %s = model.prefill_target(%rows, %lens, %kv) {FORWARD}", phase="prefill")
    call = f"%b, %u = model.assist(%t, %t, %rows, %lens, %kv) {ASSIST} : f32[B, K, Vd], !kv<target>"
    assert problems(DRAFTS + prefill + "\n" + in_phase(call, phase="draft")) == []


def test_no_launch_is_called_as_a_forward() -> None:
    body = f"%a, %s = model.prefill_target(%rows, %lens, %kv) {FORWARD}"
    kernel = 'kernel @{} {{bytes = 1, family = "rows", phase = "prefill"}}'
    for name, wrong in (("prefill_rows", False), ("prefill_target", True)):
        messages = problems(in_phase(body, phase="prefill") + "\n" + kernel.format(name), "typed, clustered")
        assert [line for line in messages if "and so is another op" in line] == messages
        assert bool(messages) is wrong


def test_the_node_axis_is_not_the_path_axis() -> None:
    """The stride bug of tree verification: N == A in this module, and the checker still refuses."""
    lines = [
        "input %predict : i32[B, N]\ninput %accept : i32[B]",
        in_phase("%ids = commit.extend_ids(%predict, %accept) : i64[B, A]", phase="commit"),
    ]
    (message,) = problems("\n".join(lines))
    assert message == "type/axis-mismatch: commit.extend_ids: predict must have A at axis 1, got N in i32[B, N]"


def test_the_node_axis_is_not_the_path_axis_at_the_end_of_a_chain() -> None:
    """The same with the compiler's own graph: skip the compaction of predict, and types object."""
    module = compile_to("infer-types", load())
    dims = module.dims
    assert dims["N"].size == dims["A"].size
    (path, _) = module.find("commit.path")
    module.replace_uses(path.result, path.operands[0])
    diagnostics = check_module(module)
    assert diagnostics
    assert {d.code for d in diagnostics} == {"type/axis-mismatch"}


def test_what_the_engine_writes_is_loaded_before_it_does() -> None:
    """Between the halves of a step, so that neither an op nor a launch behind it loads the field."""
    engines = "carry @e : i64[B] table engine\n"
    load_, store = '%x = carry.load(%rows) {field = "e"} : i64[B]', 'carry.store(%rows, %lens) {field = "e"}'
    assert problems(engines + in_phase(load_)) == []
    assert problems(engines + in_phase(load_, phase="redraft")) == [
        "ir/invalid: carry.load behind the engine's own writes"
    ]
    assert problems(engines + in_phase(store)) == ["ir/invalid: carry.store of a field that the engine writes"]
    assert problems("carry @e : i64[B] table program\n" + in_phase(load_, store, phase="redraft")) == []
    loaded_late = in_phase(load_.replace("}", ', kernel = "late"}'))
    kernel = 'kernel @late {bytes = 8, family = "rows", phase = "prepare"}'
    claims = "typed, live, tree-form, verify-selected, compacted, kv-bound, clustered"
    assert problems(f"{engines}{loaded_late}\n{kernel}", claims) == []
    messages = problems(f"{engines}{loaded_late}\n{kernel.replace('prepare', 'extend')}", claims)
    assert messages == ["ir/invalid: carry.load behind the engine's own writes"]


@pytest.mark.parametrize("algorithm", names())
@pytest.mark.parametrize("last", [name for name in PASSES if name != "check-resources"])
def test_every_stage_of_a_build_is_valid(algorithm: str, last: str) -> None:
    module = compile_to(last, load(algorithm, num_steps=2))
    assert check_module(module) + check_linear(module) == []
