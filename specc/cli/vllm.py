"""`specc vllm`: commands for whoever runs vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specc.cli.reporting import reporting
from specc.cli.serving import GpuOption, NameOption, OutputOption, checked, gpu_named, say, write

CommandArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="-- COMMAND...",
        help="What starts the server, as it is written: vllm serve ..., python -m vllm.entrypoints.openai.api_server "
        "..., or the arguments alone; in words, or as one text in quotes.",
        show_default=False,
    ),
]
vllm = typer.Typer(help="Programs for vLLM.", no_args_is_help=True, rich_markup_mode=None)


@vllm.callback()
def _group() -> None:
    """Keep `check` a command of a group, though it is the only one."""


@vllm.command()
def check(
    arguments: CommandArgument,
    output: OutputOption = None,
    gpu: GpuOption = None,
    name: NameOption = None,
    verify: Annotated[
        str, typer.Option(metavar="HOW", help="The key verify: greedy leaves requests that sample to vLLM.")
    ] = "target_only",
    sampling: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="The key sampling, with commas: what requests may sample with. Default: top_k,top_p, of a greedy "
            "program nothing.",
            show_default=False,
        ),
    ] = None,
    outputs: Annotated[
        str, typer.Option(metavar="LIST", help="The key outputs, with commas.", show_default=False)
    ] = "",
    best_logprobs: Annotated[int, typer.Option(metavar="N", help="The key best_logprobs.")] = 0,
    page_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens of a block, where the server's log says them.", min=1, max=1 << 16),
    ] = None,
) -> None:
    """Say which server a command starts, and write the configuration of its program, which is checked."""
    with reporting() as report:
        from specc.config.pasted import Wanted
        from specc.config.vllm.command_line import parse
        from specc.config.vllm.server import started
        from specc.config.vllm.written import configuration, served

        parsed = parse(arguments)
        server = started(parsed, gpu_named(gpu), page_size)
        say(server.described())
        filters = sampling if sampling is not None else "" if verify == "greedy" else "top_k,top_p"
        text = configuration(parsed, server, Wanted(name, verify, filters, outputs, best_logprobs))
        config = checked(text, output or Path("vllm.yaml"), parsed, report)
        typer.echo(served(config), err=True)
        write(text, output)
