"""`specc list`: the algorithms and the compiled programs that are installed here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from specc.cli.completion import installed
from specc.cli.inspect import program_root, undamaged
from specc.cli.reporting import Format, printing, reporting
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.runtime.plan.files.manifest import Manifest
from specc.runtime.plan.files.plan_json import load_plan

MODELS = "specc.models"
"""The group of entry points of functions whose rows say what is served of every type of models."""


def list(
    models: Annotated[
        bool,
        typer.Option("--models", help="List the types of models instead, and what is served of each in which engine."),
    ] = False,
    format: Annotated[Format, typer.Option(help="How it is printed.")] = Format.text,
) -> None:
    """List the algorithms and the programs that are installed, or the models that are served."""
    with reporting(format) as report:
        from specc.compiler.support.render import to_json

        if models:
            _print_models(format)
            return
        problems: dict[str, Diagnostic] = {}
        listed = {"algorithms": [*_algorithms(problems)], "programs": [*programs(problems)]}
        warnings = [replace(problem, severity="warning", location=None) for problem in problems.values()]
        if format is Format.json:
            typer.echo(json.dumps(listed | {"warnings": to_json(warnings)}, indent=2))
            return
        _print(listed)
        report.show(warnings)


def _algorithms(problems: dict[str, Diagnostic]) -> Iterator[dict[str, Any]]:
    """Every algorithm; those of plugins that cannot be used are problems instead."""
    from specc.compiler.algorithms import algorithm, names, plugin

    for name in names():
        try:
            loaded, source = algorithm(name), plugin(name)
        except DiagnosticError as error:
            problems[name] = error.diagnostics[0]
            continue
        yield {
            "name": name,
            "summary": loaded.summary,
            "forms": ["chain", *(["tree"] if loaded.needs.trees else [])],
            "from": "specc" if source is None else source.distribution,
        }


def programs(problems: dict[str, Diagnostic]) -> Iterator[dict[str, Any]]:
    """Every program, by name; damaged ones are problems instead. Digests are not compared."""
    for package in installed():
        try:
            with program_root(package) as root, undamaged(package):
                manifest, plan = Manifest.read(root), load_plan(root)
        except DiagnosticError as error:
            problems[package] = error.diagnostics[0]
            continue
        yield {
            "name": manifest.name,
            "package": package,
            "version": manifest.version,
            "algorithm": plan.algorithm,
            "shapes": sorted(manifest.plans, key=lambda name: [int(number) for number in re.findall(r"\d+", name)]),
            "archs": [*manifest.archs],
            "engine": manifest.engine,
        }


def _print_models(format: Format) -> None:
    from rich.text import Text

    from specc.compiler.driver.summary import plain_table

    tables = entry_points(group=MODELS)
    if not tables:
        raise typer.BadParameter("no engine is installed that models were tried with", param_hint="--models")
    models = [row for table in tables for row in table.load()()]
    if format is Format.json:
        typer.echo(json.dumps({"models": models}, indent=2))
        return
    with printing() as console:
        console.print(plain_table(models))
        console.print(Text("an engine has to have the model itself; `specc check` asks a model of yours"))


def _print(listed: dict[str, Any]) -> None:
    from rich.text import Text

    from specc.compiler.driver.summary import plain_table

    with printing() as console:
        console.print(Text("algorithms", "bold"), plain_table(listed["algorithms"]), sep="\n")
        console.print(Text("\nprograms", "bold"))
        if listed["programs"]:
            console.print(plain_table(listed["programs"]))
        else:
            console.print(Text("none is installed: pip install the wheel that `specc build` writes"))
