"""`specc-opt`: run passes by hand over a configuration or a `.specir` file, and look at what they do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specc.cli import completion
from specc.cli.configuration import load
from specc.cli.reporting import Report, reporting, run
from specc.cli.versions import VersionOption
from specc.cli.words import Command

if TYPE_CHECKING:
    from specc.compiler.config import LoadedConfig
    from specc.compiler.ir.core import Module
    from specc.compiler.pass_manager.instruments import TimePasses
    from specc.compiler.pass_manager.manager import Instrument
    from specc.compiler.pass_manager.pass_base import Context, Pass

MAX_BYTES = 1 << 20
"""Largest `.specir` file that is read, in bytes; those of builds have a tenth."""

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


def _list_passes(wanted: bool) -> None:
    """Print the names of all passes and leave."""
    if wanted:
        from specc.compiler.passes.pipeline import PASSES

        typer.echo("\n".join(PASSES))
        raise typer.Exit


@app.command(cls=Command)
def opt(
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A .yaml or .specir file, or - for .specir.")],
    passes: Annotated[
        str | None,
        typer.Option(
            "-p",
            "--passes",
            metavar="PASS,...",
            help="Passes to run, in order, as name or name{option=value}. Default: all of a build for .yaml,"
            " none for .specir.",
            autocompletion=completion.passes,
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", help="Where to write the module. Default: stdout.")] = None,
    print_ir_after_each: Annotated[bool, typer.Option(help="Print the module after each pass.")] = False,
    print_ir_diff: Annotated[bool, typer.Option(help="Print what each pass changed.")] = False,
    time_passes: Annotated[bool, typer.Option(help="Print the time each pass took.")] = False,
    remarks: Annotated[bool, typer.Option(help="Print the decisions passes took.")] = False,
    check_each: Annotated[bool, typer.Option(help="Run the checker after each pass.")] = True,
    list_passes: Annotated[
        bool, typer.Option("--list-passes", callback=_list_passes, is_eager=True, help="List all passes and leave.")
    ] = False,
    version: VersionOption = False,
) -> None:
    """Read a module, run passes over it, print it."""
    with reporting() as report:
        from specc.compiler.pass_manager.instruments import PrintIr, Reproducer, TimePasses
        from specc.compiler.pass_manager.manager import run_passes
        from specc.compiler.passes.invariants import CheckEach, check_now

        module, ctx = _read(source, report)
        try:
            steps = _steps(passes, ctx.loaded)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="-p") from None
        if check_each:
            check_now(module)
        clock = TimePasses()
        instruments: list[Instrument] = [Reproducer(Path())]
        instruments += [CheckEach()] if check_each else []
        instruments += [clock] if time_passes else []
        printing = print_ir_after_each or print_ir_diff
        instruments += [PrintIr(_echo, diff=print_ir_diff)] if printing else []
        run_passes(module, steps, ctx, instruments)
        _finish(module, ctx, output, quiet=printing, remarks=remarks, clock=clock)


def _steps(passes: str | None, loaded: LoadedConfig | None) -> list[Pass]:
    """The passes that are asked for; those of a build for a configuration, none for a module. ValueError: no pass."""
    from specc.compiler.passes.pipeline import default_passes, parse_pipeline

    if passes is not None:
        return parse_pipeline(passes, loaded)
    return [] if loaded is None else default_passes(loaded)


def _read(source: str, report: Report) -> tuple[Module, Context]:
    """The module and context of a file.

    Raises:
        DiagnosticError: it cannot be read, or it is wrong.

    """
    from specc.compiler.ir.text.parser import parse_module
    from specc.compiler.pass_manager.pass_base import Context
    from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
    from specc.compiler.support.files.reading import read_text, why_unreadable

    if source.endswith((".yaml", ".yml")):
        from specc.compiler.driver.compile import start_module

        loaded = load(Path(source), report)
        return start_module(loaded), Context(loaded)
    try:
        text = _read_stdin() if source == "-" else read_text(Path(source), MAX_BYTES)
    except (OSError, ValueError) as error:
        raise DiagnosticError(
            Diagnostic("config/unreadable", f"cannot read '{source}': {why_unreadable(error)}")
        ) from error
    name = Path(source).name
    report.know({name: text}, {name: source})
    return parse_module(text, name), Context()


def _read_stdin() -> str:
    """The text that is piped in; ValueError for more than `MAX_BYTES` characters, and for what is not UTF-8."""
    text = sys.stdin.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} characters")
    return text


def _echo(text: str) -> None:
    typer.echo(text, nl=False)


def _finish(
    module: Module, ctx: Context, output: Path | None, *, quiet: bool, remarks: bool, clock: TimePasses
) -> None:
    from specc.compiler.ir.text.printer import print_module
    from specc.compiler.support.files.writing import write_output

    if output is not None:
        write_output(output, print_module(module))
    elif not quiet:
        _echo(print_module(module))
    if remarks:
        for remark in ctx.remarks:
            where = f"{remark.location}: " if remark.location else ""
            typer.echo(f"{where}remark[{remark.pass_name}]: {remark.message}", err=True)
    for name, seconds in clock.seconds.items():
        typer.echo(f"{seconds * 1e3:8.2f} ms  {name}", err=True)


def main() -> None:
    """Run the command line; exit codes as `specc`'s."""
    run(app)


if __name__ == "__main__":
    main()
