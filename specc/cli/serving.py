"""Options and output that commands share which take the command line of a server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specc.cli import completion
from specc.cli.reporting import Report, printing
from specc.compiler.support.files.writing import write_output
from specc.compiler.support.render import printable

if TYPE_CHECKING:
    from specc.compiler.config import Config
    from specc.compiler.config.archs import Gpu

OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write. Default: standard output.")
]
GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="The server's: h100, b200, sm_89, ..., or cpu. Default: this machine's, or else sm_90.",
        autocompletion=completion.gpu,
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="The configuration's name. Default: one made of the algorithm."),
]
HeadOption = Annotated[
    str, typer.Option(metavar="HOW", help="The draft's key head: weights, int8 or fp8 leave it to the program.")
]
TokenMapOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The draft's key token_map, beside --head: a JSON array of the tokens that it scores, as specc hot-tokens "
        "writes it.",
        show_default=False,
    ),
]
DRAWN = "top_k,top_p"
"""Parameters, beside a temperature, that requests of an ordinary server sample with."""


def gpu_named(word: str | None, engine: str | None = None) -> Gpu:
    """The GPU of ``--gpu``, for an engine's server; a usage error for an unknown one."""
    from specc.compiler.config.archs import gpu_of

    try:
        return gpu_of(word, engine)
    except ValueError as error:
        raise typer.BadParameter(f"unknown GPU {word!r}; {error}", param_hint="--gpu") from error


def say(lines: Iterable[tuple[str, str]]) -> None:
    """Print on stderr which server it is."""
    from rich.table import Column, Table
    from rich.text import Text

    with printing(err=True) as console:
        table = Table("", Column(overflow="fold"), box=None, show_header=False, pad_edge=False)
        for what, text in lines:
            table.add_row(Text(what, "bold"), Text(printable(text)))
        console.print(table)


def tell(sentence: str) -> None:
    """Print a sentence on stderr, between whose words lines are broken as the terminal is wide."""
    from rich.text import Text

    with printing(err=True) as console:
        console.print(Text(printable(sentence)))


def checked(text: str, path: Path, unused: Iterable[str], report: Report) -> Config:
    """The configuration that a server's arguments have become, after checking it; DiagnosticError if it is not one.

    ``unused`` are arguments that say nothing about the program.
    """
    from specc.compiler.algorithms import names, needs
    from specc.compiler.config import load_text
    from specc.compiler.driver.compile import check_config

    loaded = load_text(text, path, names(), needs)
    report.know(loaded.sources, loaded.paths)
    check_config(loaded)
    report.show(loaded.warnings)
    if names := sorted(set(unused)):
        tell(f"say nothing about the program: {', '.join(names)}")
    return loaded.config


def write(text: str, output: Path | None) -> None:
    """Write into a file, or to stdout; DiagnosticError ``emit/io``."""
    if output is None:
        typer.echo(text, nl=False)
        return
    write_output(output, text)
    typer.echo(printable(str(output)))
