"""`specc check`: load a configuration, run the compiler up to code generation, say what is wrong."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specc.cli.reporting import Format, reporting

if TYPE_CHECKING:
    from specc.config import Config, LoadedConfig


def check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file.", show_default=False)],
    format: Annotated[Format, typer.Option(help="How findings are printed.")] = Format.text,
) -> None:
    """Check a configuration, without compiling anything."""
    with reporting(format) as report:
        from specc.config import load_config

        loaded = load_config(config, known_algorithms())
        report.know(loaded.sources, loaded.paths)
        compile_front(loaded)
        report.show(loaded.warnings)
        if format is Format.text:
            typer.echo(f"ok: {summary(loaded.config)}")


def known_algorithms() -> tuple[str, ...]:
    """Return the names of the installed algorithms; without the compiler, those that the schema knows."""
    if importlib.util.find_spec("specc.algorithms") is None:
        from specc.config import ALGORITHMS

        return ALGORITHMS
    from specc.algorithms import names

    return names()


def compile_front(loaded: LoadedConfig) -> None:
    """Run every pass before code generation, where the compiler is installed; raises DiagnosticError."""
    if importlib.util.find_spec("specc.driver") is not None:
        from specc.driver import check_config

        check_config(loaded)


def summary(config: Config) -> str:
    """Return a configuration in one line."""
    shape = f"chain of {config.num_steps}" if config.chain else f"tree of {config.num_nodes}"
    smallest, largest = config.buckets[0], config.buckets[-1]
    sizes = f"bucket {largest}" if smallest == largest else f"buckets {smallest}..{largest}"
    return f"{config.name}: {config.algorithm}, {shape}, page {config.page_size}, {sizes}"
