"""`specc-opt`: reading, printing, remarks, and how it ends."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from programs import compile_to, config_text, load
from typer.testing import CliRunner, Result

from specc.cli.opt import app
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.ir.text.printer import print_module
from specc.compiler.passes.pipeline import PASSES
from specc.version import __version__

MODULE = "module @m {\n  established typed\n  dim B : request <= 4\n  input %rows : i64[B]\n}\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder of its own, with a configuration and a module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPECC_DEBUG", raising=False)
    Path("c.yaml").write_text(config_text())
    Path("m.specir").write_text(MODULE)


def opt(*words: str, stdin: str | None = None) -> Result:
    """Run ``specc-opt``."""
    return CliRunner().invoke(app, list(words), input=stdin)


def test_a_configuration_runs_the_whole_build() -> None:
    result = opt("c.yaml")
    assert result.exit_code == 0, result.output
    wanted = print_module(compile_to("plan-graphs", load()))
    assert result.stdout == wanted.replace("small.yaml", "c.yaml")


def test_a_module_runs_nothing() -> None:
    assert opt("m.specir").stdout == MODULE
    assert opt("-", stdin=MODULE).stdout == MODULE


def test_a_build_can_be_continued_from_text() -> None:
    """Half of the passes from YAML, half from .specir: the same module."""
    order = [name for name in PASSES if name != "check-resources"]
    half = opt("c.yaml", "-p", ",".join(order[:6])).stdout
    Path("half.specir").write_text(half)
    assert opt("half.specir", "-p", ",".join(order[6:])).stdout == opt("c.yaml").stdout


def test_output_to_a_file() -> None:
    result = opt("c.yaml", "-p", "expand-algorithm", "-o", "out.specir")
    assert (result.exit_code, result.stdout) == (0, "")
    assert parse_module(Path("out.specir").read_text()).established == {"expanded"}


def test_output_that_cannot_be_written() -> None:
    result = opt("m.specir", "-o", "missing/out.specir")
    assert result.exit_code == 1
    assert "error[emit/io]: cannot write 'missing/out.specir'" in result.stderr


def test_the_passes_are_listed() -> None:
    """Without any input."""
    result = opt("--list-passes")
    assert (result.exit_code, result.stdout.splitlines()) == (0, list(PASSES))


def test_the_version() -> None:
    """Without any input."""
    result = opt("--version")
    assert (result.exit_code, result.stdout) == (0, f"specc {__version__}\n")


def test_remarks_and_times_go_to_stderr() -> None:
    result = opt("c.yaml", "--remarks", "--time-passes")
    assert result.exit_code == 0
    assert parse_module(result.stdout)
    assert "c.yaml:" in result.stderr
    assert "remark[form-kernels]: prepare_rows: rows over carry.load, " in result.stderr
    for name in PASSES:
        assert (f" ms  {name}\n" in result.stderr) == (name != "check-resources")


def test_printing_between_passes() -> None:
    after = opt("c.yaml", "-p", "expand-algorithm,infer-types", "--print-ir-after-each").stdout
    assert after.count("module @small {") == 2
    assert after.startswith("// ---- after expand-algorithm ----\n")
    diff = opt("c.yaml", "-p", "expand-algorithm,infer-types,cse,cse", "--print-ir-diff").stdout
    assert "-  established expanded\n+  established expanded, typed\n" in diff
    assert diff.endswith("// ---- cse ----\n// no change\n")


WRONG_OPTIONS = [
    ("rotate-step{rotated=true}", "rotate-step: rotated: 'true' is none of 'True', 'False'"),
    ("bind-kv-layout{blocks=1}", "bind-kv-layout: blocks: '1' is none of 'True', 'False'"),
    ("bind-kv-layout{blocks}", "'blocks' is no option=value"),
    ("bind-kv-layout{padding-slot=-2}", "'-2' is no number from -1 to 0"),
    ("rotate-step{rotated=True,rotated=False}", "rotate-step: the option rotated is there twice"),
    ("rotate-step{rotated=True,path=-5}", "rotate-step: path: '-5' is no number from 0 to"),
    ("rotate-step{path=1_0}", "'1_0' is no number"),
    ("rotate-step{path=\u0663}", "is no number"),
    ("rotate-step{path=99999999999}", "is no number"),
    ("check-resources{max-spills=-1}", "'-1' is no number from 0 to"),
    ("check-resources{max_spills=1}", "no option 'max_spills'"),
    ("compute-head{dtype=x}", "compute-head: dtype: 'x' is none of '', 'bf16', 'f16', 'f32'"),
    ("compute-head{form=half}", "compute-head: form: 'half' is none of 'engine', 'weights', 'int8', 'fp8'"),
    ("compute-head{form=int8}", "no head reads rows of ''"),
    ("plan-graphs{ends=x}", "'x' is no number"),
    ("plan-graphs{ends=1+}", "'' is no number"),
    ("tune-launches{choices=a:1::}", "no choice for a launch"),
    ("tune-launches{choices=a:1:::+a:2:::}", "no choice for a launch, or another one"),
    ("tune-launches{choices=a:0:::}", "'0' is no number from 1 to 65535"),
    ("tune-launches{choices=a::::1-2/1-3}", "the bucket 1 of 'a' is there twice"),
    ("place-carry{places=a:int32}", "no place of a field"),
    ("place-carry{places=a::engine+a::program}", "no place of a field, or another one"),
    ("cse{", "'cse{' names no pass"),
    ("cse}", "'cse}' names no pass"),
    ("cse{x=1}}", "names no pass"),
]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["c.yaml", "-p", "csee"], "no pass named 'csee'"),
        (["m.specir", "-p", "cse{x=1}"], "no option 'x'"),
        (["m.specir", "-p", "check-resources{max-spills=many}"], "many"),
        *((["m.specir", "-p", passes], message) for passes, message in WRONG_OPTIONS),
        ([], "INPUT"),
        (["m.specir", "--what"], "--what"),
    ],
)
def test_usage_errors(words: list[str], message: str) -> None:
    result = opt(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_a_bucket_that_the_program_has_not() -> None:
    result = opt("c.yaml", "-p", ",".join([*list(PASSES)[:16], "tune-launches{choices=verify_argmax::::7-2}"]))
    assert result.exit_code == 1
    assert "error[tuning/no-choice]: verify_argmax: the program has no bucket of 7; there are" in result.stderr


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("x.yaml", "name: [", "config/not-yaml"),
        ("x.yaml", config_text(topk=2, num_draft_tokens=4, verify="block"), "legal/verify"),
        ("x.specir", "module @m {\n  what\n}\n", "ir/parse"),
        (
            "x.specir",
            MODULE.replace("typed", "typed, clustered").replace("}\n", "phase draft {\nx.y()\n}\n}\n"),
            "ir/invalid",
        ),
        ("x.specir", b"\xff\xfe", "config/unreadable"),
    ],
)
def test_wrong_input(name: str, text: str | bytes, code: str) -> None:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    result = opt(name, "-p", "cse")
    assert result.exit_code == 1
    assert f"error[{code}]" in result.stderr
    assert "Traceback" not in result.output
    assert list(Path().glob("*.repro.specir")) == []


def test_a_missing_file() -> None:
    result = opt("missing.specir")
    assert result.exit_code == 1
    assert "error[config/unreadable]: cannot read 'missing.specir'" in result.stderr


def test_parse_errors_point_into_the_file() -> None:
    Path("x.specir").write_text("module @m {\n  what is this\n}\n")
    assert "--> x.specir:2:3" in opt("x.specir").stderr
    assert "2 |   what is this" in opt("x.specir").stderr


@pytest.mark.parametrize("name", ["rotate-step", "place-carry", "bind-kv-layout", "cse", "plan-graphs"])
def test_a_crash_leaves_a_reproducer_that_repeats_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of the file is the command, options included; running it fails the same way."""
    carry = {"bonus": {"dtype": "int64", "written_by": "program"}}
    keys = {"step": "rotated", "tables": {"slots": "block_table", "carry": carry}, "overlap": False, "page_size": 16}
    Path("c.yaml").write_text(config_text(**keys))

    def fail(*_: object) -> None:
        raise ZeroDivisionError("oh no")

    with monkeypatch.context() as broken:
        broken.setattr(PASSES[name], "run", fail)
        result = opt("c.yaml")
        assert result.exit_code == 70
        assert "error[internal/crash]: specc failed: ZeroDivisionError: oh no" in result.stderr
        assert "Traceback" not in result.output
        (path,) = Path().glob("*.repro.specir")
        assert path.name == f"small.{name}.repro.specir"
        program, *words = shlex.split(path.read_text().splitlines()[0].removeprefix("// RUN: "))
        assert program == "specc-opt"
        again = opt(*words)
        assert (again.exit_code, again.stderr) == (70, result.stderr)
    assert opt(*words).exit_code == 0


def test_what_only_a_configuration_repeats_leaves_no_reproducer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pass reads all of it: no text of a module makes it fail again."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("oh no")

    monkeypatch.setattr(PASSES["expand-algorithm"], "run", fail)
    result = opt("c.yaml")
    assert result.exit_code == 70
    assert "reproducer" not in result.stderr
    assert list(Path().glob("*.repro.specir")) == []


def test_the_checker_can_be_switched_off() -> None:
    broken = MODULE.replace("}\n", "  phase draft {\n    %h = health.clear(%rows) : f32[B]\n  }\n  output h = %h\n}\n")
    Path("x.specir").write_text(broken)
    assert opt("x.specir", "-p", "cse").exit_code == 1
    assert opt("x.specir", "-p", "cse", "--no-check-each").stdout == broken
