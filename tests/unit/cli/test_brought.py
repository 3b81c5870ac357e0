"""Commands that other houses, and packages beside specc, bring by entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import typer
from typer.testing import CliRunner

from specc.cli import main
from specc.cli.reporting import reported
from specc.cli.words import COMMANDS


def test_one_that_cannot_be_imported_says_so_when_it_is_run() -> None:
    module = main._brought(EntryPoint("odd-one", "nowhere_at_all.commands", COMMANDS))
    assert module.EXAMPLES == {"odd-one": ()}
    app = typer.Typer()
    app.command()(reported(module.odd_one))
    done = CliRunner().invoke(app)
    assert done.exit_code == 1
    assert "plugin/unusable" in done.stderr and "odd-one, of nowhere_at_all.commands, cannot be imported" in done.stderr


def test_one_that_can_is_its_module() -> None:
    module = main._brought(EntryPoint("run", "specc.lab.commands.run", COMMANDS))
    assert module.__name__ == "specc.lab.commands.run"
