"""What commands that measure have alike: libraries of an extra, and figures that are printed and drawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import typer

from specc.cli.reporting import Format, Report, printing
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.extras import how_to_get
from specc.compiler.support.render import printable, to_json

if TYPE_CHECKING:
    from rich.console import RenderableType


class JsonFigures(Protocol):
    """Figures that have a form for JSON."""

    def record(self) -> dict[str, Any]:
        """Return them as JSON has them."""
        ...


Figures = TypeVar("Figures", bound=JsonFigures)


def require_library(library: str, does: str, option: str) -> None:
    """A usage error where a library of the extra `bench`, which `does` what an option asks for, is not installed."""
    if find_spec(library) is None:
        message = f"{library} {does}, and is not installed: {how_to_get('bench')}"
        raise typer.BadParameter(message, param_hint=option)


def require_drawable(plot: Path | None) -> None:
    """A usage error where a picture is wanted and nothing draws."""
    if plot is not None:
        require_library("matplotlib", "draws", "--plot")


def print_figures(
    figures: Figures,
    tables: Callable[[Figures], Iterable[RenderableType]],
    warnings: Sequence[Diagnostic],
    format: Format,
    report: Report,
) -> None:
    """Print figures as JSON with their warnings, or as their tables behind these."""
    if format is Format.json:
        typer.echo(json.dumps(figures.record() | {"warnings": to_json(warnings, {})}, indent=2))
        return
    report.show(warnings)
    with printing() as console:
        for part in tables(figures):
            console.print(part)


def draw_figures(figures: Figures, draw: Callable[[Figures, Path], None], plot: Path) -> None:
    """Draw figures into a file and say so; raises DiagnosticError ``emit/io`` where that cannot be."""
    try:
        draw(figures, plot)
    except (OSError, ValueError) as error:
        raise DiagnosticError(Diagnostic("emit/io", f"cannot draw into '{plot}': {error}")) from error
    typer.echo(printable(f"wrote {plot}"), err=True)
