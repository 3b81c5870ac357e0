"""`specc sglang`: commands for whoever runs SGLang."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from specc.cli.reporting import Report, reporting
from specc.cli.serving import (
    GpuOption,
    HeadOption,
    NameOption,
    OutputOption,
    TokenMapOption,
    checked,
    gpu_named,
    say,
    tell,
    write,
)

if TYPE_CHECKING:
    from specc.compiler.config.wanted import Wanted

CommandArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="-- COMMAND...",
        help="What starts the server, as it is written: sglang serve ..., python -m sglang.launch_server ..., or the "
        "arguments alone; in words, or as one text in quotes.",
        show_default=False,
    ),
]
BudgetOption = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="The key budget: the target reads so many rows of a request on average, the most probable of the batch. "
        "With commas several, such as 2,4,all.",
        show_default=False,
    ),
]
EXAMPLES = {
    "check": (
        "specc sglang check -o server.yaml -- sglang serve --model-path models/target ...",
        "specc sglang check --gpu b200 -- 'sglang serve --model-path models/target ...'",
    )
}
"""What `--help` ends with."""
sglang = typer.Typer(help="Programs for SGLang.", no_args_is_help=True, rich_markup_mode=None)


@sglang.callback()
def _group() -> None:
    """Keep `check` a command of a group, though it is the only one."""


@sglang.command()
def check(
    arguments: CommandArgument,
    output: OutputOption = None,
    gpu: GpuOption = None,
    name: NameOption = None,
    verify: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="The key verify: target_only serves requests that sample, too. Default: as the server is asked to "
            "weigh drafts that are drawn, otherwise greedy.",
            show_default=False,
        ),
    ] = None,
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
    shapes: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="The key shapes, with commas, such as 5x4x8,3,0: the server's own is the largest.",
            show_default=False,
        ),
    ] = "",
    budget: BudgetOption = "",
    head: HeadOption = "engine",
    token_map: TokenMapOption = None,
    states: Annotated[
        str,
        typer.Option(metavar="HOW", help="The target's key state_form: select leaves recurrent states to the program."),
    ] = "engine",
) -> None:
    """Say which server a command starts, and write the configuration of its program, which is checked."""
    with reporting() as report:
        from specc.compiler.config.wanted import Wanted

        wanted = Wanted(
            name, verify, sampling=sampling, outputs=outputs, best_logprobs=best_logprobs, logits=logits,
            shapes=shapes, head=head, token_map=token_map, states=states, budget=budget,
        )  # fmt: skip
        write(configured(arguments, gpu, wanted, output or Path("sglang.yaml"), report), output)


def launch() -> ModuleType:
    """The module that says what starts a server, which is imported where it is asked for."""
    from specc.engines.sglang.commands import launch as starts

    return starts


def configured(words: list[str], gpu: str | None, wanted: Wanted, path: Path, report: Report) -> str:
    """The configuration for the server that a command starts, after saying which that is and what will be served."""
    from specc.engines.pasted import set_in_front
    from specc.engines.sglang.check.command_line import parse
    from specc.engines.sglang.check.server import started
    from specc.engines.sglang.check.written import configuration, served

    parsed = parse(words)
    server = started(parsed, gpu_named(gpu, "sglang"))
    say(server.described())
    text = configuration(parsed, server, wanted)
    tell(served(checked(text, path, parsed.unused, report)))
    if variable := set_in_front(wanted):
        tell(f"the server is started with {variable}")
    return text
