"""`specc sglang`: commands for whoever runs SGLang."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specc.cli.reporting import printing, reporting
from specc.support.render import printable
from specc.support.writing import write_output

if TYPE_CHECKING:
    from specc.config.sglang.server import Gpu

CommandArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="-- COMMAND...",
        help="What starts the server, as it is written: python -m sglang.launch_server ..., sglang serve ..., or the "
        "arguments alone; in words, or as one text in quotes.",
        show_default=False,
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option(metavar="GPU", help="The server's: h100, b200, sm_89, ... Default: this machine's, or else sm_90."),
]
sglang = typer.Typer(help="Programs for SGLang.", no_args_is_help=True, rich_markup_mode=None)


@sglang.callback()
def _group() -> None:
    """Keep `check` a command of a group, though it is the only one."""


@sglang.command()
def check(
    arguments: CommandArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write. Default: standard output.")
    ] = None,
    gpu: GpuOption = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The configuration's name. Default: one made of the algorithm.")
    ] = None,
    verify: Annotated[
        str, typer.Option(metavar="HOW", help="The key verify: target_only serves requests that sample, too.")
    ] = "greedy",
    sampling: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="The key sampling, with commas: what such requests may ask for.", show_default=False
        ),
    ] = "",
    outputs: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="The key outputs, with commas: logprobs serves return_logprob.", show_default=False
        ),
    ] = "",
    best_logprobs: Annotated[
        int, typer.Option(metavar="N", help="The key best_logprobs: serves top_logprobs_num up to N.")
    ] = 0,
    logits: Annotated[
        str, typer.Option(metavar="HOW", help="The key logits: sharded leaves each rank its own of --tp-size.")
    ] = "gathered",
) -> None:
    """Say which server a command starts, and write the configuration of its program, which is checked."""
    with reporting() as report:
        from specc.algorithms import names, needs
        from specc.config import load_text
        from specc.config.sglang.command_line import parse
        from specc.config.sglang.server import started
        from specc.config.sglang.written import Wanted, configuration, served
        from specc.driver.compile import check_config

        parsed = parse(arguments)
        server = started(parsed, _gpu(gpu))
        _say(server.described())
        text = configuration(parsed, server, Wanted(name, verify, sampling, outputs, best_logprobs, logits))
        loaded = load_text(text, output or Path("sglang.yaml"), names(), needs)
        report.know(loaded.sources, loaded.paths)
        check_config(loaded)
        report.show(loaded.warnings)
        if parsed.unused:
            typer.echo(f"say nothing about the program: {', '.join(sorted(set(parsed.unused)))}", err=True)
        typer.echo(served(loaded.config), err=True)
        _write(text, output)


def _gpu(word: str | None) -> Gpu:
    """The GPU of ``--gpu``; a usage error for an unknown one."""
    from specc.config.sglang.server import gpu_of

    try:
        return gpu_of(word)
    except ValueError as error:
        raise typer.BadParameter(f"unknown GPU {word!r}; {error}", param_hint="--gpu") from error


def _say(lines: Iterable[tuple[str, str]]) -> None:
    """Print on stderr which server it is."""
    from rich.table import Column, Table
    from rich.text import Text

    with printing(err=True) as console:
        table = Table("", Column(overflow="fold"), box=None, show_header=False, pad_edge=False)
        for what, said in lines:
            table.add_row(Text(what, "bold"), Text(printable(said)))
        console.print(table)


def _write(text: str, output: Path | None) -> None:
    """Write into a file, or to stdout; DiagnosticError ``emit/io``."""
    if output is None:
        typer.echo(text, nl=False)
        return
    write_output(output, text)
    typer.echo(printable(str(output)))
