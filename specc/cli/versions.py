"""The option --version of every command line."""

from __future__ import annotations

from typing import Annotated

import typer

from specc.version import __version__


def _print_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        typer.echo(f"specc {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]
