"""The manager and what hangs on it: requirements, invariants, instruments, reproducers, the -p syntax."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from programs import compile_to, load, passes_to, run_on

from specc.compiler.ir.core import Module
from specc.compiler.ir.declarations import Resources
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.ir.text.printer import print_module
from specc.compiler.ir.types import TensorType
from specc.compiler.pass_manager.instruments import PrintIr, Reproducer, TimePasses, spell
from specc.compiler.pass_manager.manager import BaseInstrument, run_passes
from specc.compiler.pass_manager.pass_base import Context, Pass
from specc.compiler.passes.canonicalize import Canonicalize
from specc.compiler.passes.check_resources import CheckResources
from specc.compiler.passes.cse import Cse
from specc.compiler.passes.form_kernels import FormKernels
from specc.compiler.passes.invariants import BrokenModuleError, CheckEach, check_invariants, check_now
from specc.compiler.passes.pipeline import BACK, FRONT, PASSES, PLANNING, default_passes, parse_pipeline
from specc.compiler.support.diagnostics import DiagnosticError

EMPTY = "module @m {\n  established typed, live\n  dim B : request <= 4\n  input %rows : i64[B]\n}\n"


@dataclass(frozen=True)
class Noop(Pass):
    """Does nothing but claim something."""

    name = "noop"
    establishes = frozenset({"special"})

    def run(self, module: Module, ctx: Context) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Breaks(Pass):
    """Leaves an op whose type is wrong."""

    name = "breaks"

    def run(self, module: Module, ctx: Context) -> None:
        """Break it."""
        rows = module.inputs["rows"]
        module.add_op("prepare", "health.clear", [rows], [("h", TensorType("f32", ("B",)))], {}, None)


@dataclass(frozen=True)
class Crashes(Pass):
    """Fails as a pass with a bug does."""

    name = "crashes"
    bits: int = 3

    def run(self, module: Module, ctx: Context) -> None:
        """Fail, halfway through."""
        module.erase_input("rows")
        raise RuntimeError("first line\nsecond line")


@dataclass
class Log(BaseInstrument):
    """Writes down what it is told."""

    told: list[str] = field(default_factory=list)

    def before(self, module: Module, step: Pass) -> None:
        """It begins."""
        self.told.append(f"before {step.name}")

    def after(self, module: Module, step: Pass) -> None:
        """It is done."""
        self.told.append(f"after {step.name}: {', '.join(sorted(module.established))}")

    def failed(self, module: Module, step: Pass, error: Exception) -> None:
        """It raised."""
        self.told.append(f"failed {step.name}: {type(error).__name__}")


def test_invariants_are_recorded() -> None:
    log = Log()
    run_passes(parse_module(EMPTY), [Canonicalize(), Noop()], Context(), [log])
    assert log.told == [
        "before canonicalize",
        "after canonicalize: live, typed",
        "before noop",
        "after noop: live, special, typed",
    ]


def test_a_pass_needs_what_it_requires() -> None:
    with pytest.raises(DiagnosticError, match="cse needs a module that is typed"):
        run_passes(parse_module("module @m {\n}\n"), [Cse()], Context())


def test_instruments_hear_of_failures() -> None:
    log = Log()
    with pytest.raises(RuntimeError, match="first line"):
        run_passes(parse_module(EMPTY), [Crashes()], Context(), [log])
    assert log.told == ["before crashes", "failed crashes: RuntimeError"]


def test_check_each_names_the_pass() -> None:
    """What a pass breaks is its own bug, not the user's mistake."""
    log = Log()
    with pytest.raises(
        BrokenModuleError, match=r"breaks left a module that does not hold: .*%h is f32\[B\], should be"
    ):
        run_passes(parse_module(EMPTY), [Breaks()], Context(), [CheckEach(), log])
    assert log.told == ["before breaks", "failed breaks: BrokenModuleError"]


@pytest.mark.parametrize(
    ("steps", "checked"), [([Canonicalize()] * 3, 1), ([Noop()] * 2, 1), ([Canonicalize(), Noop(), Canonicalize()], 2)]
)
def test_what_has_not_changed_is_checked_once(steps: list[Pass], checked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To claim something more is a change, too."""
    asked: list[Module] = []
    monkeypatch.setattr("specc.compiler.passes.invariants.check_now", asked.append)
    run_passes(parse_module(EMPTY), steps, Context(), [CheckEach()])
    assert len(asked) == checked


def test_a_change_is_checked_after_what_changed_nothing() -> None:
    with pytest.raises(BrokenModuleError, match="breaks left a module"):
        run_passes(parse_module(EMPTY), [Cse(), Cse(), Breaks()], Context(), [CheckEach()])


def test_a_wrong_module_is_the_users_mistake() -> None:
    module = parse_module(EMPTY)
    check_now(module)
    Breaks().run(module, Context())
    with pytest.raises(DiagnosticError) as raised:
        check_now(module)
    assert [d.code for d in raised.value.diagnostics] == ["ir/invalid"]


def test_a_crash_leaves_a_reproducer(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as raised:
        run_passes(parse_module(EMPTY), [Crashes()], Context(), [Reproducer(tmp_path)])
    path = tmp_path / "m.crashes.repro.specir"
    lines = path.read_text().splitlines()
    assert lines[0] == "// RUN: specc-opt -p crashes{bits=3} m.crashes.repro.specir"
    assert lines[1] == "// RuntimeError: first line"
    assert print_module(parse_module(path.read_text())) == print_module(parse_module(EMPTY))
    assert raised.value.__notes__ == [f"reproducer: {path}"]


def test_a_wrong_module_leaves_a_reproducer_too(tmp_path: Path) -> None:
    with pytest.raises(BrokenModuleError):
        run_passes(parse_module(EMPTY), [Breaks()], Context(), [Reproducer(tmp_path), CheckEach()])
    assert (tmp_path / "m.breaks.repro.specir").exists()


def test_the_users_mistake_leaves_none(tmp_path: Path) -> None:
    loaded = load("EAGLE", draft={"hidden_size": 32})
    from specc.compiler.driver.compile import start_module

    with pytest.raises(DiagnosticError, match="type/width-mismatch"):
        run_passes(start_module(loaded), passes_to("infer-types", loaded), Context(loaded), [Reproducer(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_print_ir_and_time() -> None:
    whole: list[str] = []
    diff: list[str] = []
    clock = TimePasses()
    tools = [PrintIr(whole.append), PrintIr(diff.append, diff=True), clock]
    run_passes(parse_module(EMPTY.replace(", live", "")), [Canonicalize(), Cse()], Context(), tools)
    assert whole[0].startswith("// ---- after canonicalize ----\nmodule @m {\n  established live, typed\n")
    assert diff[0].startswith("// ---- canonicalize ----\n@@")
    assert "\n-  input %rows : i64[B]" in diff[0]
    assert diff[1] == "// ---- cse ----\n// no change\n"
    assert list(clock.seconds) == ["canonicalize", "cse"]


def test_the_pipeline() -> None:
    assert len(PASSES) == 22
    assert [step.name for step in default_passes()] == [step.name for step in (*FRONT, *PLANNING)]
    assert list(PASSES) == [step.name for step in (*FRONT, *PLANNING, *BACK)]


def test_requirements_can_be_met_in_order() -> None:
    """Each pass requires only what passes before it establish, and nothing is established that no one knows."""
    established: set[str] = set()
    by_checker = {"compacted", "kv-bound", "resources-checked"}
    for step in PASSES.values():
        assert step.requires <= established, step.name
        established |= step.establishes
    asked = {name for step in PASSES.values() if "violations" in vars(step) for name in step.establishes}
    assert established == asked | by_checker


def test_parsing_pipelines() -> None:
    assert parse_pipeline("") == []
    assert parse_pipeline("cse, canonicalize,") == [Cse(), Canonicalize()]
    assert parse_pipeline("check-resources{max-spills=8,max-shared=100},cse") == [CheckResources(8, 100), Cse()]
    assert parse_pipeline(spell(CheckResources(8, 100))) == [CheckResources(8, 100)]
    for text, message in [
        ("csee", "no pass named 'csee'; there are expand-algorithm, "),
        ("cse{x=1}", "cse has no option 'x'"),
        ("check-resources{max-spills=many}", "'many' is no number from 0 to 2147483647"),
        ("check-resources{max_spills=1}", "no option 'max_spills'"),
    ]:
        with pytest.raises(ValueError, match=message):
            parse_pipeline(text)


# --- check-resources ------------------------------------------------------------------------------------------------


def resources(**figures: int) -> Context:
    """A context with the figures of one kernel on one architecture."""
    used = {"registers": 32, "spills": 0, "shared": 1024} | figures
    return Context(resources={("k", "sm_90"): Resources("k.sm_90", "k", "sm_90", **used)})


def test_kernels_within_the_limits_are_recorded() -> None:
    module, ctx = parse_module("module @m {\n  established clustered\n}\n"), resources()
    run_passes(module, [CheckResources()], ctx)
    assert module.decls == list(ctx.resources.values())
    assert [remark.message for remark in ctx.remarks] == ["k on sm_90: 32 registers, 0 B spilled, 1024 B shared"]


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"spills": 8}, "k on sm_90 spills 8 bytes per thread"),
        ({"shared": (227 << 10) + 1}, "needs 232449 bytes of shared memory"),
    ],
)
def test_kernels_beyond_the_limits_are_refused(figures: dict[str, int], message: str) -> None:
    module = parse_module("module @m {\n  established clustered\n}\n")
    with pytest.raises(DiagnosticError, match=message) as raised:
        run_passes(module, [CheckResources()], resources(**figures))
    assert [d.code for d in raised.value.diagnostics] == ["kernel/resources"]
    run_passes(module, [CheckResources(max_spills=8, max_shared=1 << 18)], resources(**figures))


# --- invariants -----------------------------------------------------------------------------------------------------


def after(last: str) -> str:
    """The text of a small program after a pass."""
    return print_module(compile_to(last, load("EAGLE", num_steps=2)))


BROKEN = [
    ("live", "canonicalize", "  output health = %health_out\n", "", "health.raise in extend is dead"),
    ("live", "canonicalize", 'capture = "last"', 'capture = "null"', "which does not fit its results"),
    ("tree-form", "select-tree-form", "chain.append(", "tree.positions(", "tree.positions in a chain"),
    ("clustered", "form-kernels", ', kernel = "verify_argmax"', "", "is in no kernel"),
    (
        "laid-out",
        "assign-layouts",
        "  layout @tokens {",
        "  layout @tokens9 {",
        "%tokens crosses nodes and has",
    ),
    (
        "bucketed",
        "specialize-buckets",
        "  grid @prepare_rows.1 {bucket = 1,",
        "  grid @prepare_rows.1 {bucket = 3,",
        "for bucket 1",
    ),
    ("graph-planned", "plan-graphs", "node @prepare_rows {", "node @repare_rows {", "prepare_rows is not planned"),
    ("graph-planned", "plan-graphs", "after = []", 'after = ["extend"]', "runs before extend"),
]


@pytest.mark.parametrize(("invariant", "last", "old", "new", "message"), BROKEN)
def test_broken_invariants(invariant: str, last: str, old: str, new: str, message: str) -> None:
    text = after(last)
    assert old in text
    assert check_invariants(parse_module(text)) == []
    diagnostics = check_invariants(parse_module(text.replace(old, new)))
    assert f"not {invariant}: " in diagnostics[0].message
    assert any(message in d.message for d in diagnostics), diagnostics


def test_expanded_and_typed() -> None:
    text = EMPTY.removesuffix("}\n").replace("typed, live", "expanded, typed") + "  phase prepare {\n"
    text += '    spec.step() {algorithm = "X"}\n    %h = health.clear(%rows) : ?\n  }\n}\n'
    assert [d.message for d in check_invariants(parse_module(text))] == [
        "not expanded: spec.step is left",
        "not expanded: spec.step has no location",
        "not expanded: health.clear has no location",
        "not typed: %h has no type",
    ]


@pytest.mark.parametrize(("offset", "message"), [(1, "is not aligned to 256"), (0, "overlap while both are live")])
def test_misplaced_buffers(offset: int, message: str) -> None:
    text = after("plan-memory")
    line = next(line for line in text.splitlines() if line.startswith("  buffer @relay.bonus"))
    head, _, tail = line.partition("offset = ")
    moved = f"{head}offset = {offset},{tail.partition(',')[2]}"
    diagnostics = check_invariants(parse_module(text.replace(line, moved)))
    assert diagnostics
    assert any(message in d.message for d in diagnostics)


def test_kernels_in_a_circle() -> None:
    """Two clusters that wait for each other are no clusters."""
    module, _ = run_on("module @m {\n  established typed\n  input %rows : i64[B]\n}\n")
    (rows,) = module.inputs.values()
    value = rows
    for kernel in ("a", "b", "a"):
        op = module.add_op("prepare", "commit.select", [value], [("x", value.type)], {"kernel": kernel}, None)
        value = op.result
    module.outputs["x"] = value
    module.established = {*FormKernels.requires, "clustered"}
    assert "not clustered: kernels depend on each other in a circle" in [d.message for d in check_invariants(module)]
