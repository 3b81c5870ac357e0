"""`--help`, and what shells complete."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import get_args, get_type_hints

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.models import OptionInfo
from typer.testing import CliRunner

from specc.cli import completion, examples
from specc.cli.main import app
from specc.cli.reporting import run
from specc.cli.words import COMMANDS as BROUGHT
from specc.compiler.algorithms import names
from specc.compiler.passes.pipeline import PASSES

from .test_commands_page import COMMANDS


def brought() -> Iterator[tuple[str, tuple[str, ...]]]:
    """What engines and the lab bring: lines by command, whose group stands in front."""
    for point in entry_points(group=BROUGHT):
        for name, lines in point.load().EXAMPLES.items():
            yield name if name == point.name else f"{point.name} {name}", lines


EXAMPLES = examples.EXAMPLES | dict(brought())
OWN = [name for name in COMMANDS if name != "specc-opt"]


def helped(*words: str, width: int = 80) -> str:
    """What help prints on a terminal of so many columns."""
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": str(width)}, terminal_width=width)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("width", [60, 80, 160])
def test_summaries_are_whole(width: int) -> None:
    text = helped(width=width)
    assert "..." not in text[text.index("Commands:") :]
    for name in OWN:
        if name.count(" ") == 1:
            summary = (COMMANDS[name].help or "").split("\n")[0]
            assert summary in " ".join(text.split()), name


@pytest.mark.parametrize("name", OWN)
def test_help_ends_with_examples(name: str) -> None:
    words = name.split()[1:]
    text = helped(*words)
    assert text.rstrip().endswith("\n".join(f"    {line}" for line in EXAMPLES[" ".join(words)]))


@pytest.mark.parametrize("name", OWN)
def test_examples_are_command_lines(name: str) -> None:
    """Every command of a line parses; what is behind a pipe is one as well."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for line in EXAMPLES[name.removeprefix("specc ")]:
        for part in re.split(r" [|>] ", line):
            words = shlex.split(part)
            if words[0] != "specc":
                continue
            command = group.commands[words[1]]
            rest = words[2:]
            if isinstance(command, TyperGroup):
                command, rest = command.commands[words[2]], words[3:]
            assert isinstance(command, TyperCommand)
            with command.make_context(words[1], rest) as context:
                assert context.args == []
            assert " ".join(words[:3]).startswith(name) or part != line


def test_options_of_run_stand_in_groups() -> None:
    text = helped("run")
    headings = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert headings == ["Arguments", "Models", "Prompts", "Form of the text", "Drawing", "What is shown", "Options"]
    drawing = text[text.index("\nDrawing:") : text.index("\nWhat is shown:")]
    assert "--temperature" in drawing and "--target" not in drawing


def completed(line: str) -> list[str]:
    """The words that bash would offer at the end of a line."""
    words = line.split(" ")
    environment = {
        "_SPECC_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_TESTING": "True",
    }
    done = CliRunner().invoke(app, [], env=environment, prog_name="specc")
    return done.stdout.split()


WRONG_WORDS = (None, "", "x", "-1", "1 2", "\u0663", "9" * 4301, "\x1b[2J")


@pytest.mark.parametrize("changes", [{"COMP_WORDS": None}, *({"COMP_CWORD": word} for word in WRONG_WORDS)])
@pytest.mark.parametrize("program", ["SPECC", "SPECC_OPT"])
def test_a_shell_that_asks_nothing(
    program: str, changes: dict[str, str | None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told why, in a line, and no command runs."""
    given = {f"_{program}_COMPLETE": "complete_bash", "COMP_WORDS": "specc ch", "COMP_CWORD": "1"} | changes
    for name, value in given.items():
        monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as left:
        run(lambda: pytest.fail("a command runs"))
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith(f"Error: {next(iter(changes))} ") and "\x1b" not in line and len(line) < 120


def test_shells_complete_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "installed", lambda: ["specc_program_one", "specc_program_two"])
    assert completed("specc build a.yaml --arch sm_9") == ["sm_90"]
    assert completed("specc build a.yaml --arch sm_80,sm_10") == ["sm_80,sm_100", "sm_80,sm_103"]
    assert completed("specc check a.yaml --engine ") == ["sglang", "vllm"]
    assert completed("specc explain a.yaml --pass ") == [*PASSES]
    assert completed("specc init a b --algorithm eag") == ["eagle", "eagle3"]
    assert completed("specc init a b --algorithm ") == [*names()]
    assert completed("specc init a b --gpu h1") == ["h100"]
    for command in ("run", "inspect", "explain", "report", "check", "bench"):
        assert completed(f"specc {command} specc_program_t") == ["specc_program_two"]
    assert completed("specc run examples/") == []  # the shell has the files


def options(group: typer.Typer) -> Iterator[tuple[str, OptionInfo]]:
    """Return the options of all commands as they are declared, by the names of their parameters."""
    for command in group.registered_commands:
        assert command.callback is not None
        for name, kind in get_type_hints(command.callback, include_extras=True).items():
            yield from ((name, about) for about in get_args(kind)[1:] if isinstance(about, OptionInfo))
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from options(inner.typer_instance)


def test_an_option_whose_value_has_its_name_says_its_flag() -> None:
    """Typer 0.27 takes the value's name for the flag's where they are the same word: --GPU, --NAME."""
    declared = list(options(app))
    assert len(declared) > 50
    for name, option in declared:
        flags = option.default, *(option.param_decls or ())  # of an annotation the first one is in this place
        assert str(option.metavar).lower() != name or f"--{name}" in flags, name
