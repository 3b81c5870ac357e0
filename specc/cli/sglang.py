"""`specc sglang`: commands for whoever runs SGLang."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specc.cli.reporting import reporting
from specc.support.writing import write_output

sglang = typer.Typer(help="Programs for SGLang.", no_args_is_help=True, rich_markup_mode=None)


@sglang.callback()
def _group() -> None:
    """Keep `check` a command of a group, though it is the only one."""


@sglang.command()
def check(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="-- SERVER_ARGS...",
            help="Arguments as python -m sglang.launch_server takes them.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write. Default: standard output.")
    ] = None,
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
    """Write the configuration of the program that SGLang with these arguments runs, and check it."""
    with reporting() as report:
        from specc.algorithms import names, needs
        from specc.config import load_text
        from specc.config.sglang_arguments import configuration, parse, served
        from specc.driver.compile import check_config

        parsed = parse(arguments)
        text = configuration(parsed, name, verify, sampling, outputs, best_logprobs, logits)
        loaded = load_text(text, output or Path("sglang.yaml"), names(), needs)
        report.know(loaded.sources, loaded.paths)
        check_config(loaded)
        report.show(loaded.warnings)
        if parsed.unused:
            typer.echo(f"say nothing about the program: {', '.join(sorted(set(parsed.unused)))}", err=True)
        typer.echo(served(loaded.config), err=True)
        _write(text, output)


def _write(text: str, output: Path | None) -> None:
    """Write into a file, or to stdout; DiagnosticError ``emit/io``."""
    if output is None:
        typer.echo(text, nl=False)
        return
    write_output(output, text)
    typer.echo(output)
