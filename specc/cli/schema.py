"""`specc schema`: print the JSON Schema of configuration files."""

from __future__ import annotations

import json

import typer

from specc.cli.reporting import reporting


def schema() -> None:
    """Print the JSON Schema of configuration files, for editors and other tools."""
    with reporting():
        from specc.compiler.algorithms import names
        from specc.compiler.config import json_schema

        typer.echo(json.dumps(json_schema(names()), indent=2))
