"""The entry point `specc`: which commands there are.

A command is a function in a module of its own that imports nothing heavy at its top, so that `specc --help`
stays quick although it lists them all.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable

import typer

from specc.cli.examples import EXAMPLES, epilog
from specc.cli.reporting import reported, run
from specc.cli.versions import VersionOption
from specc.cli.words import Command, CommandGroup

COMMANDS: tuple[str, ...] = (
    "init", "check", "explain", "report", "build", "list", "inspect", "run", "bench", "bench-serve", "tune",
    "hot-tokens", "schema", "doctor",
)  # fmt: skip
"""Commands in the order of `specc --help`: ``specc.cli.<name>`` has a function ``<name>``, with _ for -."""

GROUPS: tuple[str, ...] = ("sglang", "vllm")
"""Groups of commands, one for an engine: ``specc.cli.<name>`` has a typer app ``<name>``."""

YOUNG_OBJECTS = 50_000
"""New objects between two collections of garbage: modules and IR live until the end, so a search of them finds none."""

app = typer.Typer(
    name="specc",
    cls=CommandGroup,
    help="Compile one YAML configuration of speculative decoding into specialised kernels and a plan.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _options(version: VersionOption = False) -> None:
    """Take the options that belong to no command."""


def _register(name: str) -> None:
    """Add one command."""
    module = name.replace("-", "_")
    command: Callable[..., None] = getattr(importlib.import_module(f"specc.cli.{module}"), module)
    about = (command.__doc__ or "").split("\n")[0]
    app.command(name, cls=Command, short_help=about, epilog=epilog(EXAMPLES[name]))(reported(command))


def _register_group(name: str) -> None:
    """Add the commands of an engine, whose module has their examples, too."""
    module = importlib.import_module(f"specc.cli.{name}")
    group: typer.Typer = getattr(module, name)
    for command in group.registered_commands:
        assert command.callback is not None  # a function became a command
        command.epilog = epilog(module.EXAMPLES[command.callback.__name__])
    app.add_typer(group, name=name)


for _name in COMMANDS:
    _register(_name)
for _name in GROUPS:
    _register_group(_name)


def main() -> None:
    """Run the command line; exits with 0, 1 (input), 2 (usage), 3 (no GPU) or 70 (specc itself failed)."""
    gc.set_threshold(YOUNG_OBJECTS)
    run(app)


if __name__ == "__main__":
    main()
