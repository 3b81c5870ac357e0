"""`specc bench-serve`: a server with a program and without it, over its OpenAI interface."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from specc.cli.configuration import words_of
from specc.cli.progress import progress
from specc.cli.reporting import Format, reporting
from specc.lab.commands.measured import draw_figures, print_figures, require_drawable, require_library

if TYPE_CHECKING:
    from specc.compiler.support.diagnostics import Diagnostic
    from specc.lab.measure.serving.figures import Served
    from specc.lab.measure.serving.questions import Prompts
    from specc.lab.measure.serving.turns import ServerMeasurement

EXAMPLES = {
    "bench-serve": (
        "specc bench-serve -- sglang serve --model-path models/target ...",
        "specc bench-serve --batch 1,32 -- vllm serve models/target --speculative-config '{...}'",
        "specc bench-serve --url http://127.0.0.1:30000",
        "specc bench-serve --url http://127.0.0.1:8000 --against http://127.0.0.1:8001 --prompts prompts.json",
    ),
}
"""What `--help` ends with."""

MADE_UP, MT_BENCH = "made-up", "mt-bench"
MOST_CLIENTS = 4096

_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND...",
        help="What starts the server, instead of --url: it is run as it is, with the program and without it.",
        show_default=False,
    ),
]
_Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The server with the program, as http://127.0.0.1:30000.")
]
_Against = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The server without it. Default: the same one, its program off and on, if it can be switched.",
    ),
]
_Prompts = Annotated[
    str,
    typer.Option(
        metavar="FILE|made-up|mt-bench",
        help="A file with a prompt a line, a JSON list, JSONL with prompt or turns; random words of lengths as "
        "people's; or MT-Bench's questions, where a package that has them is installed.",
    ),
]
_Batch = Annotated[str, typer.Option(metavar="N,...", help="How many clients ask at a time.")]
_Turns = Annotated[int, typer.Option(min=3, max=1000, help="Of each side, in turn, for each number of clients.")]
_Requests = Annotated[
    int | None, typer.Option(min=1, help="Of a turn. Default: two of each client, and at least 8.", show_default=False)
]
_Silence = Annotated[float, typer.Option(min=0.1, max=86400, help="Seconds that a server may say nothing.")]
_Start = Annotated[float, typer.Option(min=0.1, max=86400, help="Seconds in which a COMMAND must have its server up.")]


def bench_serve(
    command: _Words = None,
    url: _Url = None,
    against: _Against = None,
    prompts: _Prompts = MADE_UP,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="How many prompts are taken, or made up.")] = 32,
    max_new_tokens: Annotated[int, typer.Option(min=2, max=1_000_000, help="Most new tokens per prompt.")] = 256,
    batch: _Batch = "1,8,32",
    turns: _Turns = 3,
    requests: _Requests = None,
    seed: Annotated[int, typer.Option(help="Of prompts that are made up.")] = 0,
    model: Annotated[str | None, typer.Option(help="As the servers name it. Default: their first.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Prompts are messages; the server's template is used.")] = False,
    timeout: _Silence = 120.0,
    start_timeout: _Start = 600.0,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="A picture, such as serve.svg.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    format: Annotated[Format, typer.Option(help="How the figures are printed.")] = Format.text,
) -> None:
    """Compare a server with a program and without it: greedy texts first, then the times of both."""
    with reporting(format) as report:
        require_library("aiohttp", "asks servers", "--url")
        require_drawable(plot)
        batches = _batches(batch)
        asked = _asked(prompts, count, seed, max_new_tokens)
        measured = _measured(command, url, against, start_timeout)
        import asyncio

        from specc.lab.measure.serving.table import draw, tables
        from specc.lab.measure.serving.turns import ServerMeasurement, ServingLoad

        wanted = ServingLoad(batches, turns, requests, model, chat, timeout)
        what = "starting the server" if command else "comparing texts"
        with progress(what, 2 * (1 + turns * len(batches)), quiet=quiet) as shown:
            served, doubts = asyncio.run(measured(ServerMeasurement(wanted, asked, shown.advance)))
        print_figures(served, tables, doubts, format, report)
        if plot is not None:
            draw_figures(served, draw, plot)


def _measured(
    command: list[str] | None, url: str | None, against: str | None, start_s: float
) -> Callable[[ServerMeasurement], Coroutine[Any, Any, tuple[Served, list[Diagnostic]]]]:
    """What measures the server that a command starts, or those at addresses."""
    from specc.lab.measure.serving.apart import measure_command
    from specc.lab.measure.serving.process import ServerCommand
    from specc.lab.measure.serving.turns import measure

    if command:
        if url is not None or against is not None:
            raise typer.BadParameter("the command's server is the only one", param_hint="--url and --against")
        try:
            return partial(measure_command, ServerCommand.of(command, start_s))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="COMMAND") from error
    if url is None:
        message = "give the address of a server that runs, or behind -- the command that starts one"
        raise typer.BadParameter(message, param_hint="--url")
    urls = [_address(url, "--url")] + ([] if against is None else [_address(against, "--against")])
    return partial(measure, urls)


def _batches(given: str) -> tuple[int, ...]:
    """Numbers of clients, ascending."""
    words = words_of(given)
    if not words or not all(word.isascii() and word.isdecimal() and len(word) < 6 for word in words):
        raise typer.BadParameter(f"numbers with commas, as 1,8,32, not {given[:60]!r}", param_hint="--batch")
    numbers = tuple(sorted({int(word) for word in words}))
    if numbers[0] < 1 or numbers[-1] > MOST_CLIENTS:
        raise typer.BadParameter(f"from 1 to {MOST_CLIENTS} clients", param_hint="--batch")
    return numbers


def _address(given: str, option: str) -> str:
    """The address of a server: a scheme, a host and perhaps a port."""
    try:
        parts = urlsplit(given)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        whole = whole and not (parts.username or parts.password or parts.query or parts.fragment)
    except ValueError:
        whole = False
    if not whole or not given.isascii() or not given.isprintable() or " " in given or len(given) > 2000:
        raise typer.BadParameter(f"an address as http://127.0.0.1:30000, not {given[:80]!r}", param_hint=option)
    return given.rstrip("/").removesuffix("/v1")


def _asked(prompts: str, count: int, seed: int, max_tokens: int) -> Prompts:
    """What `--prompts` names."""
    from specc.lab.measure.serving.questions import made_up, mt_bench, of_file

    try:
        if prompts == MADE_UP:
            return made_up(count, seed, max_tokens)
        if prompts == MT_BENCH:
            return mt_bench(count, max_tokens)
        return of_file(Path(prompts), count, max_tokens)
    except (LookupError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--prompts") from error
