"""`specc vllm`: commands for whoever runs vLLM."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from specc.cli.reporting import Report, reporting
from specc.cli.serving import (
    DRAWN,
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
        help="What starts the server, as it is written: vllm serve ..., python -m vllm.entrypoints.openai.api_server "
        "..., or the arguments alone; in words, or as one text in quotes.",
        show_default=False,
    ),
]
EXAMPLES = {
    "check": (
        "specc vllm check -o server.yaml -- vllm serve models/target --speculative-config '{...}'",
        "specc vllm check --gpu b200 --page-size 32 -- vllm serve models/target --speculative-config '{...}'",
    )
}
"""What `--help` ends with."""
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
        str | None,
        typer.Option(
            metavar="HOW",
            help="The key verify: greedy leaves requests that sample to vLLM. Default: rejection or block where the "
            "server draws drafts, otherwise target_only.",
            show_default=False,
        ),
    ] = None,
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
    head: HeadOption = "engine",
    token_map: TokenMapOption = None,
    exact: Annotated[
        Path | None,
        typer.Option(
            metavar="PYTHON",
            help="Have vLLM itself read the arguments: the Python of the environment that has it. Its own code runs, "
            "and with --trust-remote-code that of models.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Say which server a command starts, and write the configuration of its program, which is checked."""
    with reporting() as report:
        from specc.compiler.config.schema import draws_tokens
        from specc.compiler.config.wanted import Wanted

        filters = sampling if sampling is not None else DRAWN if verify is None or draws_tokens(verify) else ""
        wanted = Wanted(
            name, verify, sampling=filters, outputs=outputs, best_logprobs=best_logprobs, head=head,
            token_map=token_map,
        )  # fmt: skip
        path = output or Path("vllm.yaml")
        write(configured(arguments, gpu, wanted, path, report, page_size, exact), output)


def launch() -> ModuleType:
    """The module that says what starts a server, which is imported where it is asked for."""
    from specc.engines.vllm.commands import launch as starts

    return starts


def configured(
    words: list[str], gpu: str | None, wanted: Wanted, path: Path, report: Report, page_size: int | None = None,
    exact: Path | None = None,
) -> str:  # fmt: skip
    """The configuration for the server that a command starts, after saying which that is and what will be served."""
    from specc.engines.pasted import set_in_front
    from specc.engines.vllm.check.asked import ask
    from specc.engines.vllm.check.command_line import parse
    from specc.engines.vllm.check.server import started
    from specc.engines.vllm.check.written import configuration, served

    parsed = parse(words)
    chosen = gpu_named(gpu, "vllm")
    answer = ask(parsed, chosen, exact) if exact is not None else None
    server = started(parsed, chosen, page_size, answer)
    say(server.described())
    text = configuration(parsed, server, wanted)
    tell(served(checked(text, path, parsed.unused, report)))
    if variable := set_in_front(wanted):
        tell(f"the server is started with {variable}")
    return text
