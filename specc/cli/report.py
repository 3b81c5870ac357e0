"""`specc report`: a configuration on one page, to be opened in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specc.cli import completion
from specc.cli.configuration import (
    ChoiceTimesOption,
    EngineOption,
    ShapeOption,
    SubjectArgument,
    choices_among,
    load_subject,
    shape_index,
)
from specc.cli.reporting import reporting
from specc.compiler.support.render import printable

if TYPE_CHECKING:
    from specc.cli.reporting import Report
    from specc.compiler.explain.page.model import Page


def report(
    config: SubjectArgument,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The page.")] = Path("report.html"),
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG|PROGRAM",
            help="A second configuration, to show what differs.",
            autocompletion=completion.program,
        ),
    ] = None,
    engine: EngineOption = None,
    shape: ShapeOption = None,
    step_times: ChoiceTimesOption = None,
) -> None:
    """Write a page that tells what becomes of a configuration and why, without compiling anything."""
    with reporting() as messages:
        from specc.compiler.explain.page.page import render
        from specc.compiler.support.files.writing import write_output

        page = _page(config, messages, engine, shape, step_times)
        other = _page(against, messages, engine) if against is not None else None
        write_output(out, render(page, other))
        typer.echo(f"wrote {printable(str(out))}")


def _page(
    config: Path, messages: Report, engine: str | None, shape: str | None = None, times: Path | None = None
) -> Page:
    """The page of a configuration, at a shape or its deepest; its warnings are printed."""
    from specc.compiler.explain.page.model import gather

    subject = load_subject(config, messages, engine)
    at = shape_index(subject.loaded, shape)
    build, warnings = subject.compiled()
    page = gather(build.shapes[at], choices_among(subject, build, times))
    messages.show(warnings)
    return page
