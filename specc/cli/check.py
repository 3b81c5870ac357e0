"""`specc check`: load a configuration, run the compiler up to code generation, say what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specc.cli.configuration import EngineOption, SubjectArgument, load_subject
from specc.cli.reporting import Format, reporting

if TYPE_CHECKING:
    from specc.compiler.config import Config


def check(
    config: SubjectArgument,
    engine: EngineOption = None,
    format: Annotated[Format, typer.Option(help="How findings are printed.")] = Format.text,
) -> None:
    """Check a configuration, without compiling anything."""
    with reporting(format) as report:
        from specc.compiler.driver.compile import check_config, unloadable

        loaded = load_subject(config, report, engine).loaded
        check_config(loaded)
        report.show([*loaded.warnings, *unloadable(loaded, loaded.config.archs)])
        if format is Format.text:
            typer.echo(f"ok: {summary(loaded.config)}")


def summary(config: Config) -> str:
    """Return a configuration in one line."""
    smallest, largest = config.file.buckets[0], config.file.buckets[-1]
    sizes = f"bucket {largest}" if smallest == largest else f"buckets {smallest}..{largest}"
    budgets = sorted({shape.budget for shape in config.shapes if shape.budget is not None})
    every = ["all"] * any(shape.budget is None for shape in config.shapes if shape.num_steps)
    rows = f", {' or '.join(map(str, [*budgets, *every]))} rows a request" if budgets else ""
    rows = ", given rows" if config.rows_given else rows
    return f"{config.name}: {config.algorithm}, {config.drafted}{rows}, page {config.file.page_size}, {sizes}"
