"""docs/commands.md: every command is there, and takes the options that its usage shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from specc.cli.main import app
from specc.cli.opt import app as opt

PAGE = (Path(__file__).parents[3] / "docs" / "commands.md").read_text()
USAGES = dict(re.findall(r"^### ([^\n]+)\n\n```text\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL))


def commands(name: str, command: object) -> Iterator[tuple[str, TyperCommand]]:
    """A command, or those of a group, by what is typed."""
    if isinstance(command, TyperGroup):
        for word, inner in command.commands.items():
            yield from commands(f"{name} {word}", inner)
    elif isinstance(command, TyperCommand):
        yield name, command


COMMANDS = {**dict(commands("specc", get_command(app))), **dict(commands("specc-opt", get_command(opt)))}


def test_every_command_has_a_usage() -> None:
    assert {"specc init", "specc sglang check", "specc-opt"} <= set(COMMANDS) <= set(USAGES)
    assert len(re.findall("^### ", PAGE, re.MULTILINE)) == len(USAGES)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_usage_is_the_command_s(name: str) -> None:
    usage = USAGES[name]
    assert usage.startswith(f"{name} ") or usage == f"{name}\n"
    known = {word for parameter in COMMANDS[name].params for word in (*parameter.opts, *parameter.secondary_opts)}
    assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", usage)) <= known
