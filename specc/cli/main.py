"""The entry point `specc`: which commands there are.

A command is a function in a module of its own that imports nothing heavy at its top, so that `specc --help`
stays quick although it lists them all. Engines and the lab bring theirs by entry points (`COMMANDS`).
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

import typer

from specc.cli.examples import EXAMPLES, epilog
from specc.cli.reporting import reported, run
from specc.cli.versions import VersionOption
from specc.cli.words import COMMANDS, Command, CommandGroup
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

OWN: tuple[str, ...] = (
    "init", "check", "explain", "report", "build", "list", "inspect", "schema", "doctor",
)  # fmt: skip
"""Specc's own in the order of `specc --help`: ``specc.cli.<name>`` has a function ``<name>``."""

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


def _register(name: str, module: ModuleType, examples: Mapping[str, tuple[str, ...]]) -> None:
    """Add a command, or the commands of a group, with lines that people type."""
    command: typer.Typer | Callable[..., None] = getattr(module, name.replace("-", "_"))
    if not isinstance(command, typer.Typer):
        about = (command.__doc__ or "").split("\n")[0]
        app.command(name, cls=Command, short_help=about, epilog=epilog(examples[name]))(reported(command))
        return
    for registered in command.registered_commands:
        assert registered.callback is not None  # a function became a command
        registered.epilog = epilog(examples[registered.callback.__name__])
    app.add_typer(command, name=name)


def _brought(point: EntryPoint) -> ModuleType:
    """The module of an entry point; in place of one that cannot be imported a module whose command says so."""
    try:
        return point.load()
    except ImportError as error:
        message = f"the command {point.name}, of {point.value}, cannot be imported: {error}"

        def unusable() -> None:
            """Say why this command cannot be imported."""
            raise DiagnosticError(Diagnostic("plugin/unusable", message, hint="install the package that it is of anew"))

        module = ModuleType(point.name)
        vars(module).update({point.name.replace("-", "_"): unusable, "EXAMPLES": {point.name: ()}})
        return module


for _name in OWN:
    _register(_name, importlib.import_module(f"specc.cli.{_name}"), EXAMPLES)
for _point in sorted(entry_points(group=COMMANDS), key=lambda point: point.name):
    _register(_point.name, _module := _brought(_point), _module.EXAMPLES)


def main() -> None:
    """Run the command line; exits with 0, 1 (input), 2 (usage), 3 (no GPU) or 70 (specc itself failed)."""
    gc.set_threshold(YOUNG_OBJECTS)
    run(app)


if __name__ == "__main__":
    main()
