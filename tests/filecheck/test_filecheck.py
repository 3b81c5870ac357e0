"""Runs the RUN line of every case in this folder, in process: ``[not] specc-opt ... [2>&1] | filecheck %s``.

``%s`` is the case, ``%{to:PASS}`` the passes of a build up to and including PASS. ``not`` expects exit code 1.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import DumpInputKind, Options
from filecheck.parser import Parser
from typer.testing import CliRunner

from specc.cli.opt import app
from specc.compiler.passes.pipeline import PASSES

HERE = Path(__file__).parent
CASES = sorted(path for path in HERE.glob("*/*") if path.suffix in (".specir", ".yaml"))
RUN = re.compile(r"(?://|#) RUN: (?P<command>.+)")


def expand(command: str, case: Path) -> str:
    """Replace ``%s`` and ``%{to:PASS}``."""
    order = list(PASSES)
    command = re.sub(r"%\{to:([\w-]+)\}", lambda m: ",".join(order[: order.index(m[1]) + 1]), command)
    return command.replace("%s", str(case))


def run_lines(case: Path) -> list[str]:
    """The commands of a case, which stand before anything else in it."""
    commands = []
    for line in case.read_text().splitlines():
        match = RUN.fullmatch(line)
        if match is None:
            break
        commands.append(expand(match["command"], case))
    return commands


def opt_output(command: str) -> str:
    """Run one specc-opt command and check its exit code; its stdout, with ``2>&1`` followed by its stderr."""
    words = shlex.split(command)
    wanted = 1 if words[0] == "not" else 0
    words = words[1:] if wanted else words
    both = "2>&1" in words
    assert words[0] == "specc-opt", command
    result = CliRunner().invoke(app, [word for word in words[1:] if word != "2>&1"])
    assert result.exit_code == wanted, result.output
    return result.stdout + result.stderr if both else result.stdout


def filecheck(command: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Check the text as ``filecheck FILE [--check-prefix P]`` would."""
    words = shlex.split(command)
    assert words[0] == "filecheck", command
    prefixes = words[words.index("--check-prefix") + 1] if "--check-prefix" in words else "CHECK"
    options = Options(words[1], check_prefixes=prefixes, dump_input=DumpInputKind.FAIL)  # type: ignore[arg-type]
    code = Matcher(options, FInput("output", text), Parser.from_opts(options)).run()
    assert code == 0, f"{capsys.readouterr().err}\n--- output ---\n{text}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.stem}")
def test_case(case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)  # specc-opt leaves reproducers in the current folder
    commands = run_lines(case)
    assert commands, f"{case} has no RUN line"
    for command in commands:
        produce, _, check = command.partition(" | ")
        filecheck(check, opt_output(produce), capsys)


def test_a_wrong_check_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runner itself: a CHECK line that does not hold is an error."""
    case = tmp_path / "wrong.specir"
    case.write_text("// CHECK: module @other {\n")
    with pytest.raises(AssertionError, match="output"):
        filecheck(f"filecheck {case}", "module @this {\n}\n", capsys)


def test_every_pass_has_cases() -> None:
    folders = {case.parent.name for case in CASES}
    assert folders == set(PASSES)
